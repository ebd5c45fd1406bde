"""What happened: counters of one request, of a run, and the seconds of each phase of a cycle."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any


@dataclass
class PhaseSeconds:
    """Host seconds by phase. On an asynchronous device the wait for its work shows up in `verify`."""

    prefill: float = 0.0
    plan: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    commit: float = 0.0

    @property
    def decode(self) -> float:
        """Everything but the prefill."""
        return self.plan + self.draft + self.verify + self.commit

    def add(self, other: "PhaseSeconds") -> None:
        self.prefill += other.prefill
        self.plan += other.plan
        self.draft += other.draft
        self.verify += other.verify
        self.commit += other.commit


@dataclass
class RequestStats:
    """Counters of one request.

    Attributes:
        acceptance_lengths: tokens committed a cycle: accepted drafts + 1, less what lay behind an end of
            the request inside the block.
        drafted: drafts made.
        verified: drafts (tree nodes) that the target looked at.
        accepted: those it kept.
        slot_verified, slot_accepted: by depth, entry 0 for the first draft: cycles in which everything
            before was accepted and this depth was verified, and those of them in which it was accepted.
        rollbacks: cycles in which some verified position was rejected.
        plain_cycles: cycles without a draft.
        plain_reasons: why, counted.
        finish_reason: "stop" (end token or stop sequence), "length", "cancelled", or `None` while running.
    """

    prompt_tokens: int
    new_tokens: int = 0
    acceptance_lengths: list[int] = field(default_factory=list)
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    slot_verified: list[int] = field(default_factory=list)
    slot_accepted: list[int] = field(default_factory=list)
    rollbacks: int = 0
    plain_cycles: int = 0
    plain_reasons: dict[str, int] = field(default_factory=dict)
    finish_reason: str | None = None

    def record(self, *, drafted: int, verified: int, depth: int, accepted: int, produced: int) -> None:
        """Count one drafted cycle.

        Args:
            drafted: drafts made. verified: nodes sent to the target, the anchor not among them.
            depth: deepest of them. accepted: drafts the verifier kept. produced: tokens committed.
        """
        self.acceptance_lengths.append(produced)
        self.new_tokens += produced
        self.drafted += drafted
        self.verified += verified
        self.accepted += accepted
        self.rollbacks += verified > accepted
        missing = depth - len(self.slot_verified)
        if missing > 0:
            self.slot_verified += [0] * missing
            self.slot_accepted += [0] * missing
        for slot in range(min(accepted + 1, depth)):
            self.slot_verified[slot] += 1
        for slot in range(accepted):
            self.slot_accepted[slot] += 1

    def record_plain(self, reason: str | None) -> None:
        """Count one cycle without a draft."""
        self.acceptance_lengths.append(1)
        self.new_tokens += 1
        self.plain_cycles += 1
        if reason is not None:
            self.plain_reasons[reason] = self.plain_reasons.get(reason, 0) + 1


@dataclass(frozen=True)
class Stats:
    """Counters of a run over several requests."""

    requests: Sequence[RequestStats]
    seconds: PhaseSeconds
    cycles: int

    @property
    def acceptance_lengths(self) -> list[list[int]]:
        """A list a request, a number a cycle: accepted drafts + 1."""
        return [list(r.acceptance_lengths) for r in self.requests]

    @property
    def acceptance_length(self) -> float:
        """Mean over all cycles of all requests; 0 before the first cycle."""
        cycles = sum(len(r.acceptance_lengths) for r in self.requests)
        return sum(sum(r.acceptance_lengths) for r in self.requests) / cycles if cycles else 0.0

    @property
    def new_tokens(self) -> int:
        return sum(r.new_tokens for r in self.requests)

    @property
    def tokens_per_second(self) -> float:
        """Tokens committed by cycles, per second outside the prefill (which yields the first tokens)."""
        tokens = sum(sum(r.acceptance_lengths) for r in self.requests)
        return tokens / self.seconds.decode if self.seconds.decode else 0.0

    @property
    def draft_hit_rate(self) -> float:
        """Accepted drafts / verified drafts."""
        return _ratio(sum(r.accepted for r in self.requests), sum(r.verified for r in self.requests))

    @property
    def draft_accept_rate(self) -> float:
        """Accepted drafts / drafts made."""
        return _ratio(sum(r.accepted for r in self.requests), sum(r.drafted for r in self.requests))

    @property
    def avg_draft_len(self) -> float:
        """Drafts verified a drafted cycle."""
        drafted = self.cycles_drafted
        return sum(r.verified for r in self.requests) / drafted if drafted else 0.0

    @property
    def cycles_drafted(self) -> int:
        """Cycles with a draft, summed over requests."""
        return sum(len(r.acceptance_lengths) - r.plain_cycles for r in self.requests)

    @property
    def rollback_count(self) -> int:
        return sum(r.rollbacks for r in self.requests)

    @property
    def slot_acceptance(self) -> list[float]:
        """By depth: accepted / verified, given that everything before was accepted."""
        verified = _column_sums([r.slot_verified for r in self.requests])
        accepted = _column_sums([r.slot_accepted for r in self.requests])
        return [_ratio(a, v) for a, v in zip(accepted, verified, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain JSON values."""
        return {
            "acceptance_length": self.acceptance_length,
            "acceptance_lengths": self.acceptance_lengths,
            "new_tokens": self.new_tokens,
            "tokens_per_second": self.tokens_per_second,
            "draft_accept_rate": self.draft_accept_rate,
            "draft_hit_rate": self.draft_hit_rate,
            "avg_draft_len": self.avg_draft_len,
            "rollback_count": self.rollback_count,
            "slot_acceptance": self.slot_acceptance,
            "cycles": self.cycles,
            "cycles_drafted": self.cycles_drafted,
            "seconds": asdict(self.seconds),
            "requests": [asdict(r) for r in self.requests],
        }


def _column_sums(rows: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*rows, fillvalue=0)]


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
