"""From a checkpoint in memory to a folder, all of it or nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_core.checkpoint.base import EMBEDDING, Dialect, DraftCheckpoint
from dflash_core.checkpoint.body import DTYPES
from dflash_core.checkpoint.card import write_card
from dflash_core.checkpoint.files import CONFIG, INDEX, WEIGHTS
from dflash_core.checkpoint.keys import nearest, show
from dflash_core.checkpoint.load import Dialects, check_vocabulary, find_dialects
from dflash_core.checkpoint.shapes import INTEGERS, tensor_shapes
from dflash_core.checkpoint.weights import check_finite, write_tensors
from dflash_core.errors import CheckpointError
from dflash_core.spec import DraftSpec

if TYPE_CHECKING:
    from torch import Tensor

SHARD_BYTES = 5 << 30
ORIGIN = frozenset({"dialect", "extra", "target_name", "dtype"})
"""Fields of a spec that tell where a draft comes from, not what it computes."""


def save_checkpoint(
    checkpoint: DraftCheckpoint,
    path: str | os.PathLike[str],
    *,
    dialect: str,
    dtype: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
    card: str | None = None,
    dialects: Dialects | None = None,
) -> Path:
    """Write a checkpoint as a folder that appears complete or not at all.

    Args:
        dialect: name of the layout.
        dtype: float dtype of the weights in the file; `None` keeps theirs.
        shard_bytes: files grow to about this size; a tensor is never split.
        overwrite: replace a checkpoint that is there already. Anything else at `path` is never touched.
        card: the model card to go with it.

    Raises:
        CheckpointError: the layout cannot express the draft, the tensors do not fit the spec, or the folder
            cannot be written. Nothing is left behind.
    """
    destination = Path(path)
    layout = get_dialect(dialect, dialects)
    check_free(destination, overwrite)
    check_dtype(dtype)
    tensors = _cast(checkpoint.tensors, dtype)
    check_tensors(checkpoint.spec, tensors)
    kind = str(tensors["fc.weight"].dtype).removeprefix("torch.")
    spec = replace(checkpoint.spec, dialect=layout.name, dtype=kind)
    config = _config(layout, spec)
    names = {**layout.optional(spec), **layout.names(spec)}
    disk = {names[name]: tensor for name, tensor in layout.encode(tensors).items()}
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    except OSError as error:
        raise CheckpointError(f"{destination} cannot be written ({error.strerror}).") from error
    try:
        folder = temporary / "new"
        folder.mkdir()  # for whom the umask allows; the temporary one is for its owner alone
        if card is not None:
            write_card(card, folder)
        _write(folder, config, disk, shard_bytes)
        _publish(folder, destination)
    except OSError as error:
        size = sum(tensor.nbytes for tensor in disk.values())
        raise CheckpointError(
            f"{destination} cannot be written ({error.strerror or error}); it takes {size / 1e6:.1f} MB. "
            "Nothing was left behind."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return destination


def get_dialect(name: str, dialects: Dialects | None) -> Dialect:
    """A dialect by name.

    Raises:
        CheckpointError: there is none of this name; the message lists those there are.
    """
    known = find_dialects(dialects)
    if name not in known:
        there = ", ".join(known) or "none"
        raise CheckpointError(f"There is no dialect {show(name)}.{nearest(name, known)} There are: {there}.")
    return known[name]


def check_dtype(dtype: str | None) -> None:
    """Raises CheckpointError for a dtype that weights cannot be written in; `None` is none asked for."""
    if dtype is not None and dtype not in DTYPES:
        raise CheckpointError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}.")


def check_tensors(spec: DraftSpec, tensors: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError unless these are just the tensors of the spec, finite, of the right dtypes."""
    shapes = tensor_shapes(spec)
    for name in shapes.keys() ^ tensors.keys():
        raise CheckpointError(
            f"tensor {name} is {'missing' if name in shapes else 'not one that the spec has'}."
        )
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != shapes[name]:
            raise CheckpointError(
                f"{name} has the shape {list(tensor.shape)}; it must be {list(shapes[name])}."
            )
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in (("int64",) if name in INTEGERS else DTYPES):
            raise CheckpointError(f"{name} has the dtype {kind}, which a checkpoint cannot hold.")
        check_finite(tensor, name)
    check_vocabulary(spec, tensors)


def differences(left: DraftSpec, right: DraftSpec) -> list[str]:
    """Fields in which two specs mean different drafts."""
    return [
        field.name
        for field in fields(DraftSpec)
        if field.name not in ORIGIN and getattr(left, field.name) != getattr(right, field.name)
    ]


def _config(layout: Dialect, spec: DraftSpec) -> dict[str, Any]:
    """The config, after reading it back: what it does not say, the layout cannot express."""
    try:
        config = layout.write(spec)
        again = layout.read(json.loads(json.dumps(config, allow_nan=False)), CONFIG)
    except CheckpointError as error:
        raise CheckpointError(f"The draft cannot be written in the {layout.name} layout: {error}") from error
    if EMBEDDING in layout.optional(spec):
        again = replace(again, owns_embedding=spec.owns_embedding, owns_head=spec.owns_head)
    lost = differences(spec, again)
    if lost:
        raise CheckpointError(f"The {layout.name} layout cannot express {', '.join(lost)} of this draft.")
    return config


def _cast(tensors: Mapping[str, Tensor], dtype: str | None) -> dict[str, Tensor]:
    import torch

    if dtype is None:
        return dict(tensors)
    kind = getattr(torch, dtype)
    return {name: one.to(kind) if one.is_floating_point() else one for name, one in tensors.items()}


def check_free(destination: Path, overwrite: bool) -> None:
    """Raises CheckpointError when something is at this place that is not a checkpoint to be overwritten."""
    if not (destination.exists() or destination.is_symlink()):
        return
    if not overwrite:
        raise CheckpointError(f"{destination} exists already. Choose another place, or ask to overwrite it.")
    if destination.is_symlink() or not (destination / CONFIG).is_file():
        raise CheckpointError(f"{destination} is not a checkpoint folder, so it is not overwritten.")


def _write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], shard_bytes: int) -> None:
    (folder / CONFIG).write_text(json.dumps(config, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    shards = list(_shards(tensors, shard_bytes))
    placed: dict[str, str] = {}
    for index, names in enumerate(shards, 1):
        file = WEIGHTS if len(shards) == 1 else f"model-{index:05d}-of-{len(shards):05d}.safetensors"
        placed |= dict.fromkeys(names, file)
        group = _separate({name: tensors[name] for name in names})
        write_tensors(group, folder / file, {"format": "pt"})
    if len(shards) > 1:
        total = sum(tensor.nbytes for tensor in tensors.values())
        index_file = {"metadata": {"total_size": total}, "weight_map": dict(sorted(placed.items()))}
        (folder / INDEX).write_text(json.dumps(index_file, indent=2) + "\n", encoding="utf-8")
    for written in folder.iterdir():
        with written.open("rb") as stream:
            os.fsync(stream.fileno())


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory, as the format's writer demands; a tied head, say, is copied."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        one = tensor.detach().cpu().contiguous()
        storage = one.untyped_storage()
        if storage.nbytes() != one.nbytes or storage.data_ptr() in seen:
            one = one.clone()
        seen.add(one.untyped_storage().data_ptr())
        found[name] = one
    return found


def _shards(tensors: Mapping[str, Tensor], shard_bytes: int) -> Iterator[list[str]]:
    names: list[str] = []
    size = 0
    for name in sorted(tensors):
        if names and size + tensors[name].nbytes > shard_bytes:
            yield names
            names, size = [], 0
        names.append(name)
        size += tensors[name].nbytes
    if names:
        yield names


def _publish(temporary: Path, destination: Path) -> None:
    """Move the finished folder into place; a checkpoint that was there goes only after that."""
    if not destination.exists():
        temporary.rename(destination)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{destination.name}.old.", dir=destination.parent))
    destination.rename(old)
    try:
        temporary.rename(destination)
    except OSError:
        old.rename(destination)
        raise
    shutil.rmtree(old, ignore_errors=True)
