"""From one layout to another."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_core.checkpoint.base import EMBEDDING, HEAD, DraftCheckpoint
from dflash_core.checkpoint.card import read_card
from dflash_core.checkpoint.load import Dialects, load_checkpoint
from dflash_core.checkpoint.save import SHARD_BYTES, check_dtype, get_dialect, save_checkpoint
from dflash_core.checkpoint.shapes import reduced
from dflash_core.checkpoint.speculators import DIALECT as SPECULATORS
from dflash_core.checkpoint.targets import read_vocabulary
from dflash_core.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Conversion:
    """What `convert` did; `notes` tell of tensors that were added or left out."""

    path: Path
    source_dialect: str
    dialect: str
    dtype: str
    notes: tuple[str, ...]


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    to: str,
    dtype: str | None = None,
    target: str | os.PathLike[str] | None = None,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
    dialects: Dialects | None = None,
) -> Conversion:
    """Write the draft in `source` as a folder `destination` of another layout.

    A layout with an embedding and a head of its own gets them from `target`. A layout that borrows them
    leaves them out when they equal the target's. Without `target` that cannot be seen; a speculators draft
    of the full vocabulary is then trusted, since there they are copies of the target's by definition.

    Args:
        to: name of the dialect to write.
        dtype: float dtype of the weights to write; `None` keeps theirs.
        target: folder of the target with safetensors.

    Raises:
        CheckpointError: the source cannot be read, the layout cannot express it, an embedding or head is
            needed and no target given, or what would be left out differs from the target's.
    """
    check_dtype(dtype)
    checkpoint = load_checkpoint(source, dialects)
    was = checkpoint.spec.dialect
    carries = EMBEDDING in get_dialect(to, dialects).optional(checkpoint.spec)
    if carries and to != was:
        checkpoint, notes = _filled(checkpoint, target, to, dtype)
    elif carries:
        notes = ()
    else:
        checkpoint, notes = _borrowing(checkpoint, target, to)
    saved = save_checkpoint(
        checkpoint,
        destination,
        dialect=to,
        dtype=dtype,
        shard_bytes=shard_bytes,
        overwrite=overwrite,
        card=read_card(checkpoint.path),
        dialects=dialects,
    )
    return Conversion(saved, was, to, dtype or checkpoint.spec.dtype, notes)


def _filled(
    checkpoint: DraftCheckpoint, target: str | os.PathLike[str] | None, to: str, dtype: str | None
) -> tuple[DraftCheckpoint, tuple[str, ...]]:
    missing = [name for name in (EMBEDDING, HEAD) if name not in checkpoint.tensors]
    if not missing:
        return checkpoint, ()
    if target is None:
        raise CheckpointError(
            f"{checkpoint.path} borrows {' and '.join(missing)} from its target, but the {to} layout "
            "carries them. Name the target's folder (--target), to take them from it."
        )
    own = _vocabulary(checkpoint, target, dtype)
    spec = replace(checkpoint.spec, owns_embedding=True, owns_head=True)
    tensors = {**checkpoint.tensors, **{name: own[name] for name in missing}}
    return replace(checkpoint, spec=spec, tensors=tensors), (f"{' and '.join(missing)} taken from {target}",)


def _borrowing(
    checkpoint: DraftCheckpoint, target: str | os.PathLike[str] | None, to: str
) -> tuple[DraftCheckpoint, tuple[str, ...]]:
    own = {name: checkpoint.tensors[name] for name in (EMBEDDING, HEAD) if name in checkpoint.tensors}
    if not own:
        return checkpoint, ()
    if reduced(checkpoint.spec):
        raise CheckpointError(
            f"{checkpoint.path} has a head of its own for {checkpoint.spec.draft_vocab_size} tokens "
            f"(draft_vocab_size); the {to} layout borrows the target's, so it cannot hold this draft."
        )
    if target is not None:
        _compare(own, _vocabulary(checkpoint, target, None), checkpoint.path)
        how = f"equal to those of {target}"
    elif checkpoint.spec.dialect == SPECULATORS.name:
        how = "copies of the target's by definition, not compared"
    else:
        raise CheckpointError(
            f"{checkpoint.path} has its own {' and '.join(own)}, which the {to} layout borrows from the "
            "target. Name the target's folder (--target), to see whether they are the same."
        )
    spec = replace(checkpoint.spec, owns_embedding=False, owns_head=False)
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in own}
    return replace(checkpoint, spec=spec, tensors=tensors), (f"{' and '.join(own)} left out ({how})",)


def _vocabulary(
    checkpoint: DraftCheckpoint, target: str | os.PathLike[str], dtype: str | None
) -> dict[str, Tensor]:
    import torch

    kind = checkpoint.tensors["fc.weight"].dtype if dtype is None else getattr(torch, dtype)
    both = read_vocabulary(target, checkpoint.spec.vocab_size, checkpoint.spec.hidden_size)
    return {name: tensor.to(kind) for name, tensor in zip((EMBEDDING, HEAD), both, strict=True)}


def _compare(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor], path: Path | None) -> None:
    import torch

    for name, tensor in own.items():
        if not torch.equal(tensor.to(theirs[name].dtype), theirs[name]):
            raise CheckpointError(
                f"{path}: {name} differs from the target's, so leaving it out would change the draft. "
                "Keep it in the speculators layout."
            )
