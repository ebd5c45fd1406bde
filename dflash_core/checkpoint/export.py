"""A confidence head and protocol metadata, put into a draft checkpoint."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_core.checkpoint.base import DraftCheckpoint
from dflash_core.checkpoint.card import read_card, with_section, without_section
from dflash_core.checkpoint.confidence import (
    CONFIDENCE_PREFIX,
    CONFIDENCE_SECTION,
    confidence_parameters,
    confidence_shapes,
    fingerprint,
    read_confidence,
    write_confidence,
)
from dflash_core.checkpoint.files import CONFIG, file_names, open_folder, read_json
from dflash_core.checkpoint.keys import Keys, Source, label
from dflash_core.checkpoint.load import Dialects, load_checkpoint
from dflash_core.checkpoint.pair import Finding, TargetFacts, pair_findings
from dflash_core.checkpoint.save import check_free, get_dialect, save_checkpoint
from dflash_core.checkpoint.targets import JSON_LIMIT as TARGET_LIMIT
from dflash_core.checkpoint.targets import read_target
from dflash_core.checkpoint.validate import validate_checkpoint
from dflash_core.checkpoint.weights import FLOATS, find_weights, read_header, read_tensors, write_tensors
from dflash_core.errors import CheckpointError
from dflash_core.spec import ConfidenceSpec, DraftSpec, ProtocolSpec

if TYPE_CHECKING:
    from torch import Tensor

LAYOUT = "zlab"
HEAD_JSON, HEAD_WEIGHTS = "head.json", "head.safetensors"
HEAD_SECTION = "Confidence head"
"""Of the model card."""
LARGEST_SHARE = 0.001
"""Of the parameters of target and draft together: what a confidence head should stay below."""


@dataclass(frozen=True)
class Head:
    """A confidence head on its own: what a config says of it, and its tensors by canonical name."""

    spec: ConfidenceSpec
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class Export:
    """What was written.

    Attributes:
        head_parameters: of the confidence head; 0 without one.
        draft_parameters: of everything else.
        findings: doubts about the result, alone and with its target; errors are raised instead.
    """

    path: Path
    spec: DraftSpec
    head_parameters: int
    draft_parameters: int
    findings: tuple[Finding, ...]


def export(
    source: str | os.PathLike[str] | DraftCheckpoint,
    destination: str | os.PathLike[str],
    *,
    head: Head | str | os.PathLike[str] | None = None,
    target: str | os.PathLike[str] | TargetFacts | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
    about_head: str | None = None,
    dialects: Dialects | None = None,
) -> Export:
    """Write a draft in z-lab's layout with protocol metadata and, where one is given, a confidence head.

    Args:
        source: a folder of any layout that borrows embedding and head, or a checkpoint in memory.
        head: a head, or a folder that holds one (an exported draft, or what `save_head` wrote). Without it
            the draft keeps the one it may have.
        target: folder of the target, or facts about a loaded one; the result is held against it.
        dtype: float dtype of the weights; `None` keeps theirs, and the head gets the draft's.
        about_head: Markdown for the model card, which goes along, in place of what it says of another head.

    Raises:
        CheckpointError: the source or the head cannot be read, they do not fit each other, z-lab's layout
            cannot express the draft, or the result does not fit the target. Nothing is left behind.
    """
    checkpoint = source if isinstance(source, DraftCheckpoint) else load_checkpoint(source, dialects)
    if head is not None:
        found = head if isinstance(head, Head) else load_head(head, checkpoint.spec, dialects)
        checkpoint = with_head(checkpoint, found)
    spec = replace(checkpoint.spec, protocol=ProtocolSpec())
    facts = read_target(target) if isinstance(target, str | os.PathLike) else target
    doubts = [] if facts is None else pair_findings(spec, facts)
    wrong = " ".join(finding.message for finding in doubts if finding.level == "error")
    if wrong:
        raise CheckpointError(f"The draft does not fit its target, so it is not exported: {wrong}")
    path = save_checkpoint(
        replace(checkpoint, spec=spec),
        destination,
        dialect=LAYOUT,
        dtype=dtype,
        overwrite=overwrite,
        card=_card(checkpoint.path, head is not None, about_head),
        dialects=dialects,
    )
    findings = validate_checkpoint(path, facts, dialects)
    broken = [finding.message for finding in findings if finding.level == "error"]
    if broken:
        raise CheckpointError(f"{path} was written and is not valid: {' '.join(broken)}")
    size = confidence_parameters(spec, spec.confidence) if spec.confidence is not None else 0
    total = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    return Export(path, spec, size, total - size, tuple(findings))


def _card(source: Path | None, another_head: bool, about_head: str | None) -> str | None:
    card = read_card(source)
    if about_head is not None:
        return with_section(card or "", HEAD_SECTION, about_head)
    return without_section(card, HEAD_SECTION) if card is not None and another_head else card


def check_exportable(
    draft: DraftCheckpoint, destination: str | os.PathLike[str], overwrite: bool = False
) -> None:
    """Raise what `export` would about a draft and the place, before hours are spent on a head.

    Raises:
        CheckpointError: z-lab's layout cannot express the draft, its card cannot be copied, or something is
            there already.
    """
    read_card(draft.path)
    try:
        get_dialect(LAYOUT, None).write(draft.spec)
    except CheckpointError as error:
        raise CheckpointError(f"The draft cannot be written in the {LAYOUT} layout: {error}") from None
    check_free(Path(destination), overwrite)


def with_head(checkpoint: DraftCheckpoint, head: Head) -> DraftCheckpoint:
    """A checkpoint with this confidence head in place of the one that it may have; the dtype is the draft's.

    Raises:
        CheckpointError: the head is of another width or block.
    """
    spec = checkpoint.spec
    slots = len(head.spec.temperatures)
    if slots != spec.block_size - 1:
        raise CheckpointError(
            f"The confidence head is for {slots} drafted slots, but the draft has {spec.block_size - 1} "
            f"(block_size {spec.block_size})."
        )
    shapes = confidence_shapes(spec, head.spec)
    for name in shapes.keys() ^ head.tensors.keys():
        raise CheckpointError(
            f"The confidence head {'lacks' if name in shapes else 'has an unknown tensor,'} {name}."
        )
    for name, shape in shapes.items():
        if tuple(head.tensors[name].shape) != shape:
            raise CheckpointError(
                f"The confidence head's {name} has the shape {list(head.tensors[name].shape)}; this draft "
                f"needs {list(shape)}."
            )
    kind = checkpoint.tensors["fc.weight"].dtype
    rest = {name: one for name, one in checkpoint.tensors.items() if not name.startswith(CONFIDENCE_PREFIX)}
    own = {name: one.detach().to("cpu", kind) for name, one in head.tensors.items()}
    return replace(checkpoint, spec=replace(spec, confidence=head.spec), tensors={**rest, **own})


def fitted_on(head: Head, draft: DraftCheckpoint) -> Head:
    """The head, which from now on says that it was fitted on this draft."""
    return replace(head, spec=replace(head.spec, draft_sha256=fingerprint(draft.tensors)))


def head_of(checkpoint: DraftCheckpoint) -> Head | None:
    """The confidence head that a checkpoint has."""
    if checkpoint.spec.confidence is None:
        return None
    tensors = {name: one for name, one in checkpoint.tensors.items() if name.startswith(CONFIDENCE_PREFIX)}
    return Head(checkpoint.spec.confidence, tensors)


def save_head(head: Head, folder: str | os.PathLike[str]) -> Path:
    """Write a head alone, as `head.json` and `head.safetensors`.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        described = json.dumps({CONFIDENCE_SECTION: write_confidence(head.spec)}, indent=2, allow_nan=False)
        write_tensors({name: one.contiguous() for name, one in head.tensors.items()}, place / HEAD_WEIGHTS)
        (place / HEAD_JSON).write_text(described + "\n", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{place} cannot be written: {error}.") from None
    return place


def load_head(path: str | os.PathLike[str], spec: DraftSpec, dialects: Dialects | None = None) -> Head:
    """A head from an exported draft, or from what `save_head` wrote, for a draft of this spec.

    Raises:
        CheckpointError: there is none, or it does not fit the draft.
    """
    folder = open_folder(path)
    there = set(file_names(folder))
    if HEAD_JSON not in there:
        head = head_of(load_checkpoint(path, dialects)) if CONFIG in there else None
        if head is None:
            raise CheckpointError(
                f"{path} has no confidence head: neither {HEAD_JSON}, nor a {CONFIG} with "
                f"dflash_config.{CONFIDENCE_SECTION}."
            )
        return head
    keys = Keys(folder.where(HEAD_JSON), [Source("", read_json(folder, HEAD_JSON))])
    described = read_confidence(keys, spec.block_size, spec.markov is not None)
    keys.rest()
    if described is None:
        raise CheckpointError(f"{folder.where(HEAD_JSON)}: {CONFIDENCE_SECTION} is missing.")
    entries = read_header(folder, HEAD_WEIGHTS)
    for name, entry in entries.items():
        if entry.dtype not in FLOATS:
            raise CheckpointError(
                f"{folder.where(HEAD_WEIGHTS)}: {label(name)} has the dtype {entry.dtype}; it must be "
                f"{' or '.join(FLOATS)}."
            )
    return Head(described, read_tensors(folder, entries))


def target_parameters(path: str | os.PathLike[str]) -> int:
    """Numbers in a target's weight files, from their headers; a tied head counts once.

    Raises:
        CheckpointError: the folder has no safetensors.
    """
    folder = open_folder(path)
    entries = find_weights(folder, TARGET_LIMIT)
    return sum(math.prod(entry.shape) for entry in entries.values())
