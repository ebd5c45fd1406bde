"""Files that are computed once for every shard of answers, each there complete or not at all."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from dflash_core.errors import DFlashError
from dflash_core.training.data.store import read_shard, shards
from dflash_core.training.folder import alone, read_object, write

GIB = 2**30

Work = Callable[[Mapping[str, Tensor], Callable[[], None]], bytes]
"""What a shard's tensors become; to be told after every sequence."""

OnProgress = Callable[[int, int], None]
"""Given how many sequences are done, and how many there are in all."""


def compute_beside(
    data: Path,
    folder: Path,
    name: str,
    ending: str,
    header: Mapping[str, object],
    work: Work,
    on_progress: OnProgress = lambda done, total: None,
) -> None:
    """Compute the files of the shards that have none yet.

    Args:
        data: a store of answers, which may have grown since.
        folder: where they go.
        name, ending: of this kind of files; `name`.json says what they are made of.
        header: what that is.

    Raises:
        DFlashError: the files in the folder were made of something else, another process is computing them,
            or the disk is full.
    """
    _claim(folder / f"{name}.json", header)
    todo = missing(data, folder, ending)
    if todo:  # others may read what is complete
        with alone(folder):
            _compute(todo, folder, ending, work, on_progress)


def _compute(todo: Sequence[Path], folder: Path, ending: str, work: Work, on_progress: OnProgress) -> None:
    loaded = {shard: read_shard(shard) for shard in todo}
    total, done = sum(len(one["offsets"]) - 1 for one in loaded.values()), 0

    def one_more() -> None:
        nonlocal done
        done += 1
        on_progress(done, total)

    for shard, content in loaded.items():
        found = work(content, one_more)
        write(path_beside(folder, shard, ending), found, "What is there already stays good.")


def path_beside(folder: Path, shard: Path, ending: str) -> Path:
    """Where the file of a shard is."""
    return folder / f"{shard.stem}.{ending}"


def check_size(path: Path, shard: Path, size: int) -> None:
    """Raises DFlashError for a file that is not as long as its shard asks for."""
    if path.stat().st_size != size:
        raise DFlashError(f"{path} does not fit {shard}; delete it to have it computed again.")


def missing(data: Path, folder: Path, ending: str) -> list[Path]:
    """Shards that have no file yet."""
    return [shard for shard in shards(data) if not path_beside(folder, shard, ending).exists()]


def positions(some: Sequence[Path]) -> int:
    """Tokens of all sequences of some shards."""
    return sum(int(read_shard(shard)["offsets"][-1]) for shard in some)


def check_room(folder: Path, size: int) -> None:
    """Raises DFlashError where so many bytes more do not fit on a folder's disk; it may not exist yet."""
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))
    free = shutil.disk_usage(place).free
    if size > free:
        raise DFlashError(
            f"Hidden states in {folder} need {size / GIB:.2f} GiB more, but its disk has "
            f"{free / GIB:.2f} GiB free. Make room, choose another place with --features, or --features none."
        )


def _claim(path: Path, header: Mapping[str, object]) -> None:
    if not os.path.exists(path):  # no error where one may not look
        write(path, json.dumps(header).encode())
    elif (made := read_object(path)) != header:
        raise DFlashError(
            f"{path} was made of {json.dumps(made)}, not of {json.dumps(header)}; use another folder."
        )
