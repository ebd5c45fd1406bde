"""Access to the files of a checkpoint folder that a stranger may have made."""

from __future__ import annotations

import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from dflash_core.checkpoint.keys import label
from dflash_core.errors import CheckpointError

JSON_LIMIT = 1 << 20
"""Largest config, index or safetensors header of a draft, in bytes. Real ones stay below 100 KiB; this much
hostile JSON takes about 30 MiB once parsed."""
DEPTH_LIMIT = 32

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Folder:
    """A checkpoint folder.

    Attributes:
        path: as the caller wrote it, for messages.
        root: with symlinks resolved; files must lie in it.
        blobs: where its files may also lie: the `blobs` folder of a Hugging Face cache repository, when
            the folder is one of its `snapshots`, which consist of links there.
    """

    path: Path
    root: Path
    blobs: Path | None

    def where(self, name: str) -> str:
        """A file of the folder, for messages."""
        return f"{self.path}/{label(name)}"


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """The folder at this path; the path itself may lead through symlinks.

    Raises:
        CheckpointError: there is no such folder, or it is a GGUF file.
    """
    given = Path(path)
    if given.suffix == ".gguf":
        raise CheckpointError(
            f"{given}: GGUF drafts are not understood yet. Use the safetensors checkpoint it was made from."
        )
    try:
        root = given.resolve(strict=True)
        if not root.is_dir():
            raise CheckpointError(
                f"{given} is a file; a checkpoint is a folder with {CONFIG} and safetensors."
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{label(str(given))} cannot be opened ({_reason(error)}). Give the path of a local folder; "
            "nothing is downloaded."
        ) from error
    repositories = (parent.parent for parent in root.parents if parent.name == "snapshots")
    return Folder(
        given, root, next((blobs for one in repositories if (blobs := one / "blobs").is_dir()), None)
    )


def file_names(folder: Folder) -> list[str]:
    """Names in the folder, sorted."""
    try:
        return sorted(os.listdir(folder.root))
    except OSError as error:
        raise CheckpointError(f"{folder.path} cannot be listed ({_reason(error)}).") from error


@contextmanager
def open_file(folder: Folder, name: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file of the folder for reading; gives the stream and the file's size in bytes.

    A link is followed only to a place inside the folder, or from a Hugging Face snapshot to that repository's
    `blobs`. Pipes, devices and sockets are refused.

    Raises:
        CheckpointError: it does not exist, lies elsewhere, is no regular file, or cannot be read.
    """
    where = folder.where(name)
    descriptor = _open(folder, name, where)
    try:
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{where} is not a regular file.")
            yield stream, status.st_size
    except OSError as error:
        raise CheckpointError(f"{where} cannot be read ({_reason(error)}).") from error


def _open(folder: Folder, name: str, where: str) -> int:
    if Path(name).name != name or name in ("", ".."):
        raise CheckpointError(f"{where}: file names inside a checkpoint must not contain folders.")
    try:
        real = (folder.root / name).resolve(strict=True)
        if not _inside(real, folder):
            raise CheckpointError(
                f"{where} is a link to a place outside the checkpoint folder. Copy the file in."
            )
        return os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise CheckpointError(f"{where} does not exist.") from error
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{where} cannot be read ({_reason(error)}).") from error


def read_exactly(stream: BinaryIO, count: int, where: str) -> bytearray:
    """The next `count` bytes.

    Raises:
        CheckpointError: the file ends before.
    """
    data = bytearray(count)
    view = memoryview(data)
    done = 0
    while done < count:
        got = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise CheckpointError(f"{where} became shorter while it was read.")
        done += got
    return data


def read_json(folder: Folder, name: str, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """A JSON object from a file of at most `limit` bytes; errors as in `parse_json` and `open_file`."""
    where = folder.where(name)
    with open_file(folder, name) as (stream, size):
        if size > limit:
            raise CheckpointError(f"{where} has {size} bytes; at most {limit} are read.")
        return parse_json(bytes(read_exactly(stream, size, where)), where)


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object, strictly: UTF-8, no NaN or infinity, no key twice, nested at most `DEPTH_LIMIT` deep.

    Raises:
        CheckpointError: it is anything else; the message names `where`.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise CheckpointError(f"{where}: {label(twice)} stands there twice. Remove one of them.")
        return found

    def finite(text: str) -> float:
        if not math.isfinite(value := float(text)):
            refuse(text)
        return value

    def refuse(text: str) -> NoReturn:
        raise CheckpointError(f"{where}: the number {label(text)} is not finite.")

    try:
        parsed = json.loads(
            data.decode(), object_pairs_hook=unique, parse_float=finite, parse_constant=refuse
        )
    except RecursionError as error:
        raise CheckpointError(f"{where}: nested deeper than {DEPTH_LIMIT} levels.") from error
    except ValueError as error:
        raise CheckpointError(f"{where} is not JSON ({_reason(error)}).") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{where} must hold a JSON object.")
    level: list[Any] = [parsed]
    for _ in range(DEPTH_LIMIT):
        level = [child for value in level for child in _children(value)]
    if level:
        raise CheckpointError(f"{where}: nested deeper than {DEPTH_LIMIT} levels.")
    return parsed


def _children(value: object) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in inner if isinstance(child, dict | list)]


def _inside(real: Path, folder: Folder) -> bool:
    cached = folder.blobs is not None and real.parent == folder.blobs.resolve()
    return cached or real.is_relative_to(folder.root)


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else label(str(error))
