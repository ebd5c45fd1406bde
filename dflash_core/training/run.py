"""A training run in a folder: what it needs to go on after any interruption, and the draft so far."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from dflash_core.errors import DFlashError
from dflash_core.training.data.store import Sequences
from dflash_core.training.folder import read_object, write, writing
from dflash_core.training.model import TrainableDraft
from dflash_core.training.options import TrainOptions

STATE = "state.safetensors"
RUN = "run.json"
LOG = "log.jsonl"

NOTED_LATER = ("mask_token_id", "answers")
"""What a run file of an earlier version does not say: with nothing to compare, it is noted now."""


@dataclass(frozen=True)
class Progress:
    """One line of the log.

    Attributes:
        step: steps done.
        loss: mean over the steps since the line before.
        acceptance_length: on held-out sequences, anchors at random; `None` where it was not measured.
        tokens: slots trained on so far.
        seconds: of training so far, over all sittings.
        pending: losses of the steps since the line before; a saved state has them, a line has none.
    """

    step: int
    loss: float
    acceptance_length: float | None
    tokens: int
    seconds: float
    pending: tuple[float, ...] = ()


def fingerprint(answers: Sequences) -> str:
    """What tells answers from others, wherever they are kept."""
    digest = hashlib.sha256()
    for part in (answers.tokens, answers.loss, answers.offsets):
        digest.update(part.contiguous().numpy().data)
    return f"{len(answers)} sequences, {digest.hexdigest()[:16]}"


def agreed(folder: Path, options: TrainOptions, about: Mapping[str, Any]) -> dict[str, Any]:
    """What the run file of a folder has to say of a run.

    Raises:
        DFlashError: the folder holds a run with other options.
    """
    wanted = json.loads(json.dumps({**asdict(options), **about}))
    path = folder / RUN
    kept = read_object(path) if os.path.exists(path) else wanted
    noted = {**{name: wanted[name] for name in NOTED_LATER if name in wanted}, **kept}
    # An option that came with a later version than the run's was at its default.
    known = {**asdict(TrainOptions()), **noted}
    for name in sorted({*known, *wanted}):
        if known.get(name) != wanted.get(name):
            raise DFlashError(
                f"{folder} holds a run with {name} = {known.get(name)!r}, not {wanted.get(name)!r}. "
                "Resume it with its own options, or choose another folder, where "
                f"--start {folder / 'draft'} goes on from what this one has learnt."
            )
    return noted


def begin(folder: Path, options: TrainOptions, about: Mapping[str, Any]) -> None:
    """Claim a folder for a run, or find that it is this run's already.

    Raises:
        DFlashError: it holds a run with other options, or cannot be written to.
    """
    noted = agreed(folder, options, about)
    write(folder / RUN, json.dumps(noted, indent=1).encode())


def save_state(
    folder: Path, model: TrainableDraft, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """Write weights, optimiser and progress as one file, whole or not at all.

    Raises:
        DFlashError: it cannot be written; the state before stays.
    """
    tensors: dict[str, Tensor] = {}
    for name in model.names:
        parameter = model.parameter(name)
        tensors[f"weight/{name}"] = parameter.detach()
        for key, value in optimizer.state[parameter].items():
            tensors[f"{key}/{name}"] = value
    content = save(tensors, {"progress": json.dumps(asdict(progress))})
    write(folder / STATE, content, "The state before it is safe.")


def load_state(folder: Path, model: TrainableDraft, optimizer: torch.optim.Optimizer) -> Progress | None:
    """Put a saved state back, if there is one.

    Raises:
        DFlashError: the file is damaged.
    """
    path = folder / STATE
    if not path.exists():
        return None
    try:
        tensors = load_file(path)
        progress = Progress(**json.loads(_metadata(path)["progress"]))
        with torch.no_grad():
            for name in model.names:
                parameter = model.parameter(name)
                parameter.copy_(tensors[f"weight/{name}"])
                keys = ("step", "exp_avg", "exp_avg_sq")
                optimizer.state[parameter] = {
                    key: tensors[f"{key}/{name}"].to(parameter.device, copy=True) for key in keys
                }
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise DFlashError(f"{path} is damaged: {error}. Delete it to begin the run again.") from None
    return progress


def log(folder: Path, progress: Progress) -> None:
    """Append a line to the log; lines of steps that were lost to a kill are dropped on resuming."""
    line = asdict(replace(progress, pending=()))
    del line["pending"]
    path = folder / LOG
    with writing(path, "The last saved state is safe."), path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read_log(folder: Path, until: int | None = None) -> list[Progress]:
    """Lines of the log up to a step, each step once."""
    path = folder / LOG
    if not path.exists():
        return []
    lines = [line for text in path.read_text(errors="replace").splitlines() if (line := _line(text))]
    found = {line.step: line for line in lines if until is None or line.step <= until}
    return [found[step] for step in sorted(found)]


def _line(text: str) -> Progress | None:
    """`None` for what a full disk or a crash left of a line."""
    try:
        return Progress(**json.loads(text))
    except (ValueError, TypeError):
        return None


def _metadata(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        metadata: dict[str, str] = json.loads(file.read(size))["__metadata__"]
    return metadata
