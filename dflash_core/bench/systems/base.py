"""What a benchmark needs from a system under test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dflash_core.bench.answer import Answer
from dflash_core.bench.requests import Ask


@dataclass(frozen=True)
class Job:
    """A request to answer.

    Attributes:
        arrival: seconds after the beginning of the turn at which it may be begun, and from which its latency
            counts; `None` where it is begun as soon as fewer than the level's requests are running.
        seed: of its sampling.
        max_new_tokens: most tokens of its answer.
    """

    ask: Ask
    repeat: int
    seed: int
    max_new_tokens: int
    arrival: float | None = None


class System(Protocol):
    """Answers requests. Only one system runs at any time."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What it is, as JSON: kind, settings, versions."""
        ...

    @property
    def local(self) -> bool:
        """Whether it runs on this machine, so that its energy is this machine's."""
        ...

    @property
    def in_process(self) -> bool:
        """Whether it runs in this process, so that its memory is this process's."""
        ...

    def open(self, at_once: int | None) -> None:
        """A level begins, of so many requests at once (`None`: they arrive when they arrive)."""
        ...

    def serve(self, jobs: Sequence[Job]) -> list[Answer]:
        """Answer all of these, in any order; a request that fails is an answer with an error.

        Raises:
            DFlashError: nothing can be answered at all.
        """
        ...
