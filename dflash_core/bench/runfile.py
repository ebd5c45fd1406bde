"""The run file: one line a finished turn, so that whatever stops a benchmark costs no more than a turn."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core.bench.answer import Answer
from dflash_core.errors import DFlashError

FORMAT = 1


@dataclass(frozen=True)
class TurnResult:
    """What came of a turn.

    Attributes:
        seconds: from its beginning to its last token.
        joules: of the machine meanwhile, all sources; `None` where nothing reports or it ran elsewhere.
        memory: `peak`, `resident`, `gpu_peak` in bytes, of this process; empty where it ran elsewhere.
    """

    level: str
    round: int
    system: str
    seconds: float
    answers: tuple[Answer, ...]
    joules: float | None = None
    memory: Mapping[str, int] | None = None

    @property
    def key(self) -> str:
        """That of its `Turn`."""
        return f"{self.level}/{self.round}/{self.system}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        fields = {name: getattr(self, name) for name in ("level", "round", "system", "seconds", "joules")}
        memory = dict(self.memory) if self.memory else None
        return {**fields, "memory": memory, "answers": [answer.to_dict() for answer in self.answers]}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> TurnResult:
        """The reverse of `to_dict`."""
        answers = tuple(Answer.from_dict(answer) for answer in data["answers"])
        return TurnResult(**{**data, "answers": answers})


class RunFile:
    """A file of JSON lines: a header, then a line a turn, each on the disk before the next turn begins.

    Where a run is resumed, a line says in what environment the turns behind it were measured.

    Attributes:
        done: finished turns.
        sittings: the environments they were measured in, in order.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], resume: bool) -> None:
        """
        Args:
            header: of the run; its `fingerprint` says what belongs together, its `environment` where this
                sitting of it takes place.
            resume: go on with a file that is there, instead of beginning anew.

        Raises:
            DFlashError: the file cannot be written, is of another benchmark, is no run file, or is there
                although nothing is to be resumed.
        """
        self._path = path
        self.done: list[TurnResult] = []
        self.sittings: list[Mapping[str, Any]] = [header.get("environment", {})]
        self._arriving: list[Mapping[str, Any]] = []
        check_path(path, resume)
        try:
            if resume:
                self._read(header)
            else:
                self._begin({"format": FORMAT, **header})
        except OSError as error:
            raise DFlashError(f"{path} cannot be used as a run file: {error}.") from None

    def add(self, result: TurnResult) -> None:
        """Keep a turn for good.

        Raises:
            DFlashError: it cannot be written.
        """
        self.done.append(result)
        lines = [*({"environment": sitting} for sitting in self._arriving), result.to_dict()]
        self.sittings += self._arriving
        self._arriving = []
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DFlashError(f"{self._path} cannot be written: {error}. Earlier turns are safe.") from None

    def _begin(self, header: Mapping[str, Any]) -> None:
        """Write the header whole or not at all: half of one could be neither resumed nor begun anew."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._path.open("w", encoding="utf-8") as file:
                file.write(json.dumps(header, default=str) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            self._path.unlink(missing_ok=True)
            raise

    def _read(self, header: Mapping[str, Any]) -> None:
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        try:
            first, *lines = [json.loads(line) for line in whole.splitlines()]
            known = first["fingerprint"]
            if first["format"] != FORMAT:
                raise ValueError("another format")
            sittings = [line["environment"] for line in lines if "environment" in line]
            self._arriving = self.sittings  # of this sitting, once it has a turn
            self.sittings = [first.get("environment", {}), *sittings]
            self.done = [TurnResult.from_dict(line) for line in lines if "environment" not in line]
        except (ValueError, KeyError, TypeError) as error:
            raise DFlashError(f"{self._path} is not a run file of this version: {error}.") from None
        if known != header["fingerprint"]:
            raise DFlashError(
                f"{self._path} is a run of another benchmark: its requests, levels or systems differ. "
                "Give the options it was begun with, or another --run-file."
            )
        if len(whole) < len(content):
            os.truncate(self._path, len(whole))  # a line that was being written when the run was killed


def check_path(path: Path, resume: bool) -> None:
    """Whether a run may begin, or go on, with this file; to be asked before models are loaded.

    Raises:
        DFlashError: it is there although nothing is to be resumed, or the other way round.
    """
    begun = path.exists() and not (path.is_file() and path.stat().st_size == 0)
    if begun and not resume:
        raise DFlashError(
            f"{path} holds the results of a run. Give --resume to go on with it, another --run-file, "
            "or delete it."
        )
    if resume and not begun:
        raise DFlashError(f"There is no run in {path} to resume; leave --resume out to begin it.")


def results_of(done: Sequence[TurnResult], keys: Sequence[str]) -> list[TurnResult]:
    """Results in the order of a plan, those that it does not know left out."""
    found = {result.key: result for result in done}
    return [found[key] for key in keys if key in found]
