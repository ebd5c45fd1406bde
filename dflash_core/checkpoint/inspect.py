"""What a checkpoint folder holds, from its config and headers; no tensor is read."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from dflash_core.checkpoint.load import Dialects, Survey, survey_checkpoint
from dflash_core.checkpoint.shapes import part_of
from dflash_core.checkpoint.weights import FLOATS, NAMES
from dflash_core.spec import DraftSpec


@dataclass(frozen=True)
class TensorReport:
    """One tensor; `name` is canonical."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str


@dataclass(frozen=True)
class CheckpointReport:
    """A checkpoint at a glance.

    Attributes:
        parameters: part (fc, attention, mlp, ...) -> number of float values.
        bytes: of all tensors on disk.
        dtypes: dtype -> number of tensors.
        warnings: what is readable but doubtful.
    """

    path: str
    dialect: str
    spec: DraftSpec
    parameters: dict[str, int]
    bytes: int
    dtypes: dict[str, int]
    tensors: tuple[TensorReport, ...]
    warnings: tuple[str, ...]

    @property
    def total_parameters(self) -> int:
        """Over all parts."""
        return sum(self.parameters.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "total_parameters": self.total_parameters}


def inspect_checkpoint(path: str | os.PathLike[str], dialects: Dialects | None = None) -> CheckpointReport:
    """Report on a checkpoint.

    Raises:
        CheckpointError: it cannot be read as it stands; the message names the file and the key.
    """
    survey = survey_checkpoint(path, dialects)
    parameters: Counter[str] = Counter()
    for name, entry in survey.entries.items():
        if entry.dtype in FLOATS:
            parameters[part_of(name)] += math.prod(entry.shape)
    return CheckpointReport(
        path=str(survey.folder.path),
        dialect=survey.dialect.name,
        spec=survey.spec,
        parameters=dict(parameters),
        bytes=sum(entry.stop - entry.start for entry in survey.entries.values()),
        dtypes=dict(Counter(NAMES[entry.dtype] for entry in survey.entries.values())),
        tensors=tuple(
            TensorReport(name, entry.shape, NAMES[entry.dtype], entry.file)
            for name, entry in sorted(survey.entries.items())
        ),
        warnings=tuple(doubts(survey)),
    )


def doubts(survey: Survey) -> Iterator[str]:
    """What can be read but often goes with a draft that accepts little."""
    spec = survey.spec
    kinds = sorted({NAMES[entry.dtype] for entry in survey.entries.values() if entry.dtype in FLOATS})
    if len(kinds) > 1:
        yield f"weights have several dtypes: {', '.join(kinds)}."
    if "float16" in kinds:
        yield "weights are float16, with which acceptance near zero has been reported; bfloat16 is usual."
    narrow = [
        layer.window for layer in spec.layers if layer.window is not None and layer.window < spec.block_size
    ]
    if narrow:
        yield f"a window of {min(narrow)} tokens is shorter than the block of {spec.block_size}."
    if list(spec.taps) != sorted(spec.taps):
        yield f"taps {list(spec.taps)} are not in order, and some engines sort them."
    if spec.num_target_layers is not None and spec.num_target_layers - 1 in spec.taps:
        yield (
            f"taps {list(spec.taps)} read the target's last block, which drafts rarely do; the layer ids "
            "may be one too high."
        )
