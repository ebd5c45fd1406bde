"""From finished turns to figures: one `Figures` for each system, level and set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from dflash_core.bench.answer import Answer, Drafting
from dflash_core.bench.runfile import TurnResult
from dflash_core.bench.statistics import Estimate, percentile
from dflash_core.bench.targets import LATENCIES, LatencyTarget, latency_of

ALL = "all"
"""The name of the row over all sets."""

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class Figures:
    """What a system did at one level, with one set or with all.

    Attributes:
        requests, failed, tokens: counts; failed requests are in no other figure.
        errors: how many failed for which reason, the most frequent one first.
        latencies: seconds by latency ("ttft", "tpot", "e2e") and quantile ("p50", "p95", "p99"), of requests.
        user_rate: tokens a second that a user sees after the first delivery.
        total_rate: tokens a second of the system; `None` for a set whose requests shared turns with others'.
        goodput: requests a second that met the latency targets; `met` is their share.
        acceptance_length: tokens a cycle; `hit_rate` accepted over verified drafts. `slot_acceptance` the
            same by depth, given that everything before was accepted, `None` where no cycle came so far.
        drafting: all counters of drafts together.
        speedup: the baseline's seconds per token after the first delivery over this one's, of the same
            requests.
        speedup_e2e: the same with the seconds from asking to the last token.
        speedup_total: tokens a second of the system over the baseline's, over turns of which both answered
            every request.
        identical, compared: answers that are the baseline's, of those that both gave.
        differs_at: the earliest place, in tokens or else characters, where an answer left the baseline's.
        joules, joules_token: by request and by token.
        peak_memory, gpu_peak_memory: bytes of the process while it answered, other systems' models included.
        plain_cycles: reasons for which cycles went without a draft, counted.
        cost_request, cost_million: in the currency of the price, by request and by million tokens.
    """

    system: str
    level: str
    group: str
    requests: int
    failed: int
    tokens: int
    latencies: Mapping[str, Mapping[str, float | None]]
    user_rate: Estimate | None = None
    total_rate: Estimate | None = None
    goodput: float | None = None
    met: Estimate | None = None
    acceptance_length: Estimate | None = None
    hit_rate: Estimate | None = None
    slot_acceptance: Sequence[Estimate | None] = ()
    drafting: Drafting | None = None
    speedup: Estimate | None = None
    speedup_e2e: Estimate | None = None
    speedup_total: Estimate | None = None
    identical: int | None = None
    compared: int | None = None
    differs_at: int | None = None
    joules: float | None = None
    joules_token: float | None = None
    peak_memory: int | None = None
    gpu_peak_memory: int | None = None
    cost_request: float | None = None
    cost_million: float | None = None
    plain_cycles: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `None` is what was not reported."""
        fields: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Estimate):
                fields[name] = value.to_dict()
            elif isinstance(value, Drafting):
                fields["cycles_by_acceptance_length"] = list(value.lengths)
            elif name == "slot_acceptance":
                fields[name] = [None if one is None else one.to_dict() for one in self.slot_acceptance]
            elif name != "drafting":
                fields[name] = {k: dict(v) for k, v in value.items()} if name == "latencies" else value
        return fields


def latencies_of(answers: Sequence[Answer]) -> dict[str, dict[str, float | None]]:
    """Quantiles of every latency over answers without an error."""
    found: dict[str, dict[str, float | None]] = {}
    for name in LATENCIES:
        known = [value for answer in answers if (value := latency_of(answer, name)) is not None]
        found[name] = {label: percentile(known, quantile) for label, quantile in QUANTILES.items()}
    return found


def drafting_sum(answers: Sequence[Answer]) -> Drafting | None:
    """Counters of all answers; `None` where no answer has any."""
    known = [answer.drafting for answer in answers if answer.drafting is not None]
    return reduce(lambda a, b: a + b, known) if known else None


def errors_of(answers: Iterable[Answer]) -> dict[str, int]:
    """How many failed for which reason, the most frequent one first."""
    return dict(Counter(answer.error for answer in answers if answer.error is not None).most_common())


def same_answer(one: Answer, other: Answer) -> tuple[bool, int | None] | None:
    """Whether two systems said the same, and where they part; by tokens where both tell them, else by text.

    `None` where they cannot be compared.
    """
    first: Sequence[Any] | None
    second: Sequence[Any] | None
    if one.tokens is not None and other.tokens is not None:
        first, second = one.tokens, other.tokens
    else:
        first, second = one.text, other.text
    if first is None or second is None:
        return None
    if first == second:
        return True, None
    shorter = min(len(first), len(second))
    return False, next((i for i in range(shorter) if first[i] != second[i]), shorter)


def is_good(answer: Answer, targets: Sequence[LatencyTarget]) -> bool:
    """Whether it met every target; what failed has met none."""
    return all(target.met(answer) for target in targets)


def goodput_of(answers: Iterable[Answer], seconds: float, targets: Sequence[LatencyTarget]) -> float:
    """Good requests a second."""
    return sum(is_good(answer, targets) for answer in answers) / seconds if seconds else 0.0


def joules_of(results: Sequence[TurnResult]) -> float | None:
    """Energy of turns; `None` unless every one of them has it."""
    known = [result.joules for result in results if result.joules is not None]
    return sum(known) if known and len(known) == len(results) else None


def peak_of(results: Sequence[TurnResult], name: str) -> int | None:
    """The highest peak of turns, in bytes; `None` where none has it."""
    return max(
        (result.memory[name] for result in results if result.memory and name in result.memory), default=None
    )
