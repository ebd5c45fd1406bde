"""Files of a folder that a command works in for hours; what goes wrong with one is said with its name."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dflash_core.errors import DFlashError

LOCK = ".lock"
ELSEWHERE = "Make room, or choose another folder."


@contextmanager
def writing(path: Path, then: str = ELSEWHERE) -> Iterator[None]:
    """Within it a file is written, and its folder made.

    Args:
        then: what to do when that fails, or what is safe nevertheless.

    Raises:
        DFlashError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DFlashError(f"{path} cannot be written: {error.strerror or error}. {then}") from None


def write(path: Path, content: bytes, then: str = ELSEWHERE) -> None:
    """Write a file whole or not at all; see `writing`."""
    with writing(path, then):
        write_whole(path, content)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there complete or not at all, even if the machine stops."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name itself, before anything that relies on it is written
        finally:
            os.close(folder)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Within it no other process may write to a folder; what one that was killed left half written is gone.

    A kill ends it as well.

    Raises:
        DFlashError: another process is within, or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w")
    except OSError as error:
        raise DFlashError(f"{folder} cannot be written to: {error.strerror}.") from None
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DFlashError(f"Another process is writing to {folder}. Wait for it, or stop it.") from None
        for scratch in folder.glob(".*.part"):
            scratch.unlink(missing_ok=True)
        yield


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file that says what a folder was made of.

    Raises:
        DFlashError: it cannot be read, or is damaged.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DFlashError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DFlashError(
            f"{path} is damaged: it must be a JSON object. Restore it, or choose another folder."
        )
    return found
