"""Who answers what, and when: a benchmark as a list of turns, fixed by its seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dflash_core.bench.level import Level
from dflash_core.bench.requests import Ask
from dflash_core.bench.systems.base import Job


@dataclass(frozen=True)
class Plan:
    """All of a benchmark but the systems themselves.

    Attributes:
        asks: in the order they are asked.
        labels: of the systems.
        levels: one after another.
        repeats: how often each request is asked.
        round_size: requests that a system answers before it is the next one's turn; each level's natural
            number when `None`.
        seed: of request i's sampling it is `seed + i`; arrivals depend on it as well.
    """

    asks: tuple[Ask, ...]
    labels: tuple[str, ...]
    levels: tuple[Level, ...]
    max_new_tokens: int
    seed: int = 0
    repeats: int = 1
    round_size: int | None = None

    def fingerprint(self, systems: Sequence[Any]) -> str:
        """The same for the same requests, levels and systems: what a run that is resumed must have.

        Args:
            systems: what each says about itself.
        """
        whole = json.dumps([asdict(self), list(systems)], sort_keys=True, default=str)
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Turn:
    """Requests that one system answers at a stretch."""

    level: Level
    round: int
    system: str
    jobs: tuple[Job, ...]

    @property
    def key(self) -> str:
        """Unique within a plan."""
        return f"{self.level.label}/{self.round}/{self.system}"


def turns(plan: Plan) -> Iterator[Turn]:
    """The whole benchmark in order: round by round, and in each round every system with the same requests.

    Which system goes first rotates, and every second time around the order is reversed, so that none always
    runs after the same other one.
    """
    every = [(ask, repeat, index) for repeat in range(plan.repeats) for index, ask in enumerate(plan.asks)]
    for level in plan.levels:
        size = plan.round_size or level.natural_round
        for number, begin in enumerate(range(0, len(every), size)):
            part = every[begin : begin + size]
            times = level.arrivals(len(part), f"{plan.seed}/{number}")
            arrivals: list[float | None] = [None] * len(part) if times is None else [*times]
            jobs = tuple(
                Job(ask, repeat, plan.seed + index, plan.max_new_tokens, arrival)
                for (ask, repeat, index), arrival in zip(part, arrivals, strict=True)
            )
            for label in order_of(plan.labels, number):
                yield Turn(level, number, label, jobs)


def order_of(labels: Sequence[str], number: int) -> list[str]:
    """The order of systems in a round."""
    shift = number % len(labels)
    order = [*labels[shift:], *labels[:shift]]
    return order[::-1] if number // len(labels) % 2 else order
