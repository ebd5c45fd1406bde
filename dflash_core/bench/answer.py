"""What came back for one request: when, what, and how the drafts fared."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True)
class Drafting:
    """Counters of drafts, as far as a system tells them.

    Attributes:
        lengths: cycles by acceptance length: entry n is how many cycles committed n tokens.
        verified: drafts that the target looked at. accepted: those it kept.
        slot_verified, slot_accepted: by depth, entry 0 for the first draft: cycles in which everything before
            was accepted and this depth was verified, and those of them in which it was accepted.
    """

    lengths: tuple[int, ...] = ()
    verified: int | None = None
    accepted: int | None = None
    slot_verified: tuple[int, ...] = ()
    slot_accepted: tuple[int, ...] = ()

    @property
    def cycles(self) -> int:
        return sum(self.lengths)

    @property
    def committed(self) -> int:
        """Tokens that cycles committed."""
        return sum(length * count for length, count in enumerate(self.lengths))

    def __add__(self, other: "Drafting") -> "Drafting":
        return Drafting(
            _columns(self.lengths, other.lengths),
            _known(self.verified, other.verified),
            _known(self.accepted, other.accepted),
            _columns(self.slot_verified, other.slot_verified),
            _columns(self.slot_accepted, other.slot_accepted),
        )


def drafting_of(acceptance_lengths: Sequence[int]) -> Drafting:
    """Of a system that says no more than how many tokens each cycle gave."""
    counts = [0] * (max(acceptance_lengths, default=0) + 1)
    for length in acceptance_lengths:
        counts[length] += 1
    return Drafting(tuple(counts))


def drafting_from_histogram(
    accepted_counts: Sequence[int], verified: int | None, accepted: int | None
) -> Drafting:
    """Of an engine that counts cycles by how many drafts they accepted, as SGLang and vLLM do.

    A depth counts as verified where everything before it was accepted: exact while all cycles verify equally
    many drafts, which the engines do unless told otherwise.

    Args:
        accepted_counts: entry n is how many cycles accepted n drafts.
        verified, accepted: drafts in all, where the engine says so.
    """
    cycles = sum(accepted_counts)
    reach = [sum(accepted_counts[depth:]) for depth in range(len(accepted_counts) + 1)]
    deepest = len(accepted_counts) - 1
    if verified is not None and cycles:
        deepest = max(deepest, round(verified / cycles))
    reach += [0] * (deepest + 1 - len(reach))
    total = sum(depth * count for depth, count in enumerate(accepted_counts))
    return Drafting(
        (0, *accepted_counts),
        verified,
        total if accepted is None else accepted,
        tuple(reach[:deepest]),
        tuple(reach[1 : deepest + 1]),
    )


@dataclass(frozen=True)
class Answer:
    """One finished request. All times are seconds; `deliveries` count from `issued`.

    Attributes:
        ask: id of the request.
        repeat: which repetition of it.
        issued: when the user asked, after the beginning of the turn.
        deliveries: (when, tokens) of every time that something was handed out.
        tokens: ids of the answer, where the system tells them. text: what they say, where it does.
        new_tokens: their number.
        error: why there is no answer.
    """

    ask: str
    repeat: int
    issued: float
    deliveries: tuple[tuple[float, int], ...] = ()
    prompt_tokens: int | None = None
    new_tokens: int = 0
    tokens: tuple[int, ...] | None = None
    text: str | None = None
    finish_reason: str | None = None
    drafting: Drafting | None = None
    error: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> float | None:
        """Time to the first token."""
        return self.deliveries[0][0] if self.deliveries else None

    @property
    def end(self) -> float | None:
        """Time to the last token."""
        return self.deliveries[-1][0] if self.deliveries else None

    @property
    def decode_seconds(self) -> float:
        """From the first delivery to the last."""
        return self.deliveries[-1][0] - self.deliveries[0][0] if self.deliveries else 0.0

    @property
    def decode_tokens(self) -> int:
        """Tokens handed out after the first delivery: those that `decode_seconds` were spent on."""
        return self.new_tokens - self.deliveries[0][1] if self.deliveries else 0

    @property
    def seconds_a_token(self) -> float | None:
        """Time per output token after the first delivery; `None` when there was just one delivery."""
        return self.decode_seconds / self.decode_tokens if self.decode_tokens > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without what is not known."""
        return {name: value for name, value in asdict(self).items() if value not in (None, {})}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Answer":
        """The reverse of `to_dict`."""
        given = dict(data)
        given["deliveries"] = tuple((when, count) for when, count in given.get("deliveries", ()))
        if given.get("tokens") is not None:
            given["tokens"] = tuple(given["tokens"])
        if given.get("drafting") is not None:
            drafting: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in given["drafting"].items()
            }
            given["drafting"] = Drafting(**drafting)
        return Answer(**given)


def _columns(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(first, second, fillvalue=0))


def _known(first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return first if second is None else second
    return first + second
