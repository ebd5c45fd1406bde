"""Latency targets: "ttft <= 0.5" and the like, which an answer meets or misses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_core.bench.answer import Answer
from dflash_core.errors import SettingsError

LATENCIES = ("ttft", "tpot", "e2e")
"""Time to first token, time per output token after it, time to the last token."""

FORM = re.compile(r"\s*(\w+)\s*(?:<=|<)\s*([0-9.]+)\s*(ms|s)?\s*")


@dataclass(frozen=True)
class LatencyTarget:
    """An upper bound in seconds."""

    latency: str
    seconds: float

    def met(self, answer: Answer) -> bool:
        """Whether an answer is within it; one that came all at once has no time per token to miss."""
        if answer.error is not None:
            return False
        measured = latency_of(answer, self.latency)
        return measured is None or measured <= self.seconds


def parse_targets(texts: Sequence[str]) -> tuple[LatencyTarget, ...]:
    """All targets of a command; an answer is good when it meets every one.

    Raises:
        SettingsError: one is malformed.
    """
    return tuple(parse_target(text) for text in texts)


def parse_target(text: str) -> LatencyTarget:
    """One target.

    Raises:
        SettingsError: it is malformed.
    """
    found = FORM.fullmatch(text)
    if found is None or found[1] not in LATENCIES or found[2].count(".") > 1 or found[2] == ".":
        raise SettingsError(
            f'--latency-target is {text!r}; it must be like "ttft <= 0.5" or "tpot <= 50ms", with one of '
            f"{', '.join(LATENCIES)}."
        )
    return LatencyTarget(found[1], float(found[2]) / (1000 if found[3] == "ms" else 1))


def latency_of(answer: Answer, name: str) -> float | None:
    """A latency of an answer by its name; `None` where it has none."""
    return {"ttft": answer.first, "tpot": answer.seconds_a_token, "e2e": answer.end}[name]
