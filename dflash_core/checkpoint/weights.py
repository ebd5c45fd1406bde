"""Safetensors files, checked by us before a byte of a tensor is read.

The header of a hostile file may claim anything. Here every claim is held against the size of the file first,
and tensors are read straight into the memory they stay in: at most the file's own size, and no mapping that
would change (or kill the process) when the file does.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dflash_core.checkpoint.files import (
    INDEX,
    JSON_LIMIT,
    WEIGHTS,
    Folder,
    file_names,
    open_file,
    parse_json,
    read_exactly,
    read_json,
)
from dflash_core.checkpoint.keys import label, show
from dflash_core.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}
"""Bytes an element, of the dtypes that safetensors knows (packed ones of less than a byte excepted)."""
NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I64": "int64", "BOOL": "bool"}
"""The dtypes a draft may have, with torch's names."""
FLOATS = ("F32", "BF16", "F16")
MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: `start` to `stop` are its bytes, counted from the beginning of the file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def find_weights(folder: Folder, limit: int = JSON_LIMIT) -> dict[str, Entry]:
    """All tensors of a checkpoint, `model.safetensors` or the shards that its index names.

    Raises:
        CheckpointError: there are none, they are pickles, or a header or the index lies.
    """
    present = file_names(folder)
    if WEIGHTS in present and INDEX in present:
        raise CheckpointError(f"{folder.path} has both {WEIGHTS} and {INDEX}. Remove the one that is stale.")
    if WEIGHTS in present:
        return read_header(folder, WEIGHTS, limit)
    if INDEX in present:
        return _sharded(folder, limit)
    pickles = [name for name in present if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if pickles:
        raise CheckpointError(
            f"{folder.where(pickles[0])} is a pickle, which can run code when it is read, so it is refused. "
            f"Convert the checkpoint to {WEIGHTS}."
        )
    gguf = [name for name in present if name.endswith(".gguf")]
    if gguf:
        raise CheckpointError(
            f"{folder.where(gguf[0])}: GGUF drafts are not understood yet. Use safetensors."
        )
    raise CheckpointError(f"{folder.path} has neither {WEIGHTS} nor {INDEX}.")


def read_weight_map(folder: Folder, limit: int = JSON_LIMIT) -> dict[str, str]:
    """Tensor name -> shard, from `model.safetensors.index.json`."""
    where = folder.where(INDEX)
    weight_map = read_json(folder, INDEX, limit).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{where}: weight_map is {show(weight_map)}; it must name a shard for each tensor."
        )
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{where}: weight_map.{label(name)} is {show(shard)}; it must be a safetensors file."
            )
    return weight_map


def _sharded(folder: Folder, limit: int) -> dict[str, Entry]:
    where = folder.where(INDEX)
    weight_map = read_weight_map(folder, limit)
    found: dict[str, Entry] = {}
    for shard in sorted(set(weight_map.values())):
        for name, entry in read_header(folder, shard, limit).items():
            if weight_map.get(name) != shard:
                raise CheckpointError(
                    f"{folder.where(shard)} holds {label(name)}, but {where} places it in "
                    f"{show(weight_map.get(name))}."
                )
            found[name] = entry
    for name, shard in weight_map.items():
        if name not in found:
            raise CheckpointError(f"{where}: weight_map.{label(name)} is not in {label(shard)}.")
    return found


def read_header(folder: Folder, name: str, limit: int = JSON_LIMIT) -> dict[str, Entry]:
    """The tensors that a safetensors file declares, after checking that they tile its bytes exactly.

    Raises:
        CheckpointError: naming the file, and the tensor where there is one.
    """
    where = folder.where(name)
    with open_file(folder, name) as (stream, size):
        if size < 8:
            raise CheckpointError(f"{where} has {size} bytes; a safetensors file begins with eight.")
        length = int.from_bytes(read_exactly(stream, 8, where), "little")
        if length > size - 8:
            raise CheckpointError(f"{where}: its header claims {length} bytes of the {size - 8} that follow.")
        if length > limit:
            raise CheckpointError(f"{where}: its header has {length} bytes; at most {limit} are read.")
        header = parse_json(bytes(read_exactly(stream, length, where)), where)
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not isinstance(metadata, dict):
        raise CheckpointError(f"{where}: __metadata__ is {show(metadata)}; it must be an object.")
    entries = {key: _entry(key, value, name, 8 + length, where) for key, value in header.items()}
    reached = 8 + length
    for key, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != reached:
            raise CheckpointError(
                f"{where}: the bytes of {label(key)} begin at {entry.start}, but {reached} is next; tensors "
                "must neither overlap nor leave gaps."
            )
        reached = entry.stop
    if reached != size:
        raise CheckpointError(
            f"{where} has {size} bytes, but its header accounts for {reached}; is it truncated?"
        )
    return entries


def _entry(key: str, value: Any, file: str, base: int, where: str) -> Entry:
    at = f"{where}: {label(key)}"
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{at} must be described by exactly dtype, shape and data_offsets.")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise CheckpointError(f"{at}.dtype is {show(dtype)}, which is not a known dtype.")
    if not _naturals(shape) or len(shape) > MOST_DIMENSIONS:
        raise CheckpointError(
            f"{at}.shape is {show(shape)}; it must be a list of up to {MOST_DIMENSIONS} sizes."
        )
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{at}.data_offsets is {show(offsets)}; it must be a start and an end.")
    start, stop = offsets
    if stop - start != math.prod(shape) * BYTES[dtype]:
        raise CheckpointError(
            f"{at} has the shape {show(shape)} and dtype {dtype}, but data_offsets span {show(stop - start)} "
            "bytes."
        )
    return Entry(file, dtype, tuple(shape), base + start, base + stop)


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(entry) is int and entry >= 0 for entry in value)


def read_tensors(folder: Folder, wanted: Mapping[str, Entry]) -> dict[str, Tensor]:
    """Read these tensors; each becomes the only copy of its bytes in memory.

    Raises:
        CheckpointError: a file cannot be read to the end, or a tensor holds NaN or infinity.
    """
    tensors: dict[str, Tensor] = {}
    for file in sorted({entry.file for entry in wanted.values()}):
        inside = {name: entry for name, entry in wanted.items() if entry.file == file}
        with open_file(folder, file) as (stream, _):
            for name, entry in sorted(inside.items(), key=lambda item: item[1].start):
                tensors[name] = _read(stream, entry, folder.where(file))
                check_finite(tensors[name], f"{folder.where(file)}: {label(name)}")
    return tensors


def _read(stream: BinaryIO, entry: Entry, where: str) -> Tensor:
    import torch

    dtype = getattr(torch, NAMES[entry.dtype])
    if entry.start == entry.stop:
        return torch.empty(entry.shape, dtype=dtype)
    stream.seek(entry.start)
    data = read_exactly(stream, entry.stop - entry.start, where)
    if entry.dtype == "BOOL" and max(data) > 1:
        raise CheckpointError(f"{where}: a boolean tensor holds bytes other than 0 and 1.")
    return torch.frombuffer(data, dtype=dtype).reshape(entry.shape)


def write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file of tensors that share no memory.

    Raises:
        OSError: it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # The library makes a file for its owner alone; one that is made here first shows what the umask allows.
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file(dict(tensors), path, metadata)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)


def check_finite(tensor: Tensor, at: str) -> None:
    """Raises CheckpointError when a float tensor holds NaN or infinity; takes a million values at a time."""
    import torch

    if not tensor.is_floating_point():
        return
    for part in torch.split(tensor.reshape(-1), 1 << 20):
        if not bool(torch.isfinite(part).all()):
            raise CheckpointError(
                f"{at} holds NaN or infinity. The checkpoint is damaged, or training diverged."
            )
