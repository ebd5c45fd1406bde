"""Puts the figures of a benchmark together: sets, ratios to the baseline, and the rows over all sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dflash_core.bench.answer import Answer
from dflash_core.bench.figures import (
    ALL,
    Figures,
    drafting_sum,
    errors_of,
    goodput_of,
    is_good,
    joules_of,
    latencies_of,
    peak_of,
    same_answer,
)
from dflash_core.bench.runfile import TurnResult
from dflash_core.bench.statistics import Estimate, Floats, draw_weights, mean_of, quotient, ratio_of_sums
from dflash_core.bench.targets import LatencyTarget

Key = tuple[str, int]
"""Request and repetition."""

Draws = tuple[Sequence[str], Floats]
"""Requests, and how often each is in every draw."""


@dataclass(frozen=True)
class Measured:
    """What is summarised.

    Attributes:
        results: turns of all systems and levels.
        groups: set by id of request.
        baseline: the system that ratios are taken to; `None` for none.
        price: of an hour of the machine.
        seed: of the bootstrap.
    """

    results: Sequence[TurnResult]
    groups: Mapping[str, str]
    baseline: str | None
    targets: Sequence[LatencyTarget] = ()
    price: float | None = None
    seed: int = 0


def summarise(measured: Measured) -> list[Figures]:
    """Figures by level, system and set, the row over all sets last; only requests that a system has answered.

    Over all sets, ratios to the baseline, users' rates, acceptance lengths and hit rates are the mean of the
    sets' figures, so that a large set counts no more than a small one; latencies, the system's rate and costs
    are of all requests alike.
    """
    rows: list[Figures] = []
    for level in dict.fromkeys(result.level for result in measured.results):
        at_level = [result for result in measured.results if result.level == level]
        for system in dict.fromkeys(result.system for result in at_level):
            rows += _of_system(measured, at_level, system)
    return rows


def _of_system(measured: Measured, at_level: Sequence[TurnResult], system: str) -> list[Figures]:
    own = [result for result in at_level if result.system == system]
    base = [result for result in at_level if result.system == measured.baseline]
    names = sorted({measured.groups[answer.ask] for result in own for answer in result.answers})
    rows = [_of_set(measured, own, base, name) for name in names]
    return [*rows, _of_all(measured, own, base, rows)]


def _of_set(measured: Measured, own: Sequence[TurnResult], base: Sequence[TurnResult], group: str) -> Figures:
    def within(results: Sequence[TurnResult]) -> dict[Key, Answer]:
        return {
            (answer.ask, answer.repeat): answer
            for result in results
            for answer in result.answers
            if measured.groups[answer.ask] == group
        }

    everything, others = within(own), within(base)
    answers = {key: answer for key, answer in everything.items() if answer.error is None}
    draws = _draws(measured, group, answers)
    shared = [key for key in answers if key in others and others[key].error is None]
    pure = _pure_turns(measured, own, group)
    pure_base = _pure_turns(measured, base, group)
    counters = drafting_sum(list(answers.values()))
    same = [found for key in shared if (found := same_answer(answers[key], others[key])) is not None]
    seconds = sum(result.seconds for result in pure or ())
    return Figures(
        system=own[0].system,
        level=own[0].level,
        group=group,
        requests=len(everything),
        failed=len(everything) - len(answers),
        tokens=sum(answer.new_tokens for answer in answers.values()),
        latencies=latencies_of(list(answers.values())),
        user_rate=_rate(answers, draws),
        total_rate=None if pure is None else _total_rate(pure, draws),
        goodput=goodput_of(everything.values(), seconds, measured.targets)
        if measured.targets and pure is not None
        else None,
        met=_met(measured, group, everything),
        acceptance_length=_acceptance_length(answers, draws),
        hit_rate=_share(_by_ask(answers, draws, "accepted", "verified")),
        slot_acceptance=_slot_acceptance(answers, draws),
        drafting=counters,
        speedup=_speedup(measured, group, answers, others, shared, whole=False),
        speedup_e2e=_speedup(measured, group, answers, others, shared, whole=True),
        speedup_total=_speedup_total(measured, group, pure or (), pure_base or ()),
        identical=sum(equal for equal, _ in same) if same else None,
        compared=len(same) or None,
        differs_at=min((place for _, place in same if place is not None), default=None),
        plain_cycles=_plain_cycles(answers.values()),
        errors=errors_of(everything.values()),
        **_costs(measured, pure, len(answers), sum(answer.new_tokens for answer in answers.values())),
        peak_memory=peak_of(own, "peak"),
        gpu_peak_memory=peak_of(own, "gpu_peak"),
    )


def _of_all(
    measured: Measured, own: Sequence[TurnResult], base: Sequence[TurnResult], rows: Sequence[Figures]
) -> Figures:
    everything = {(answer.ask, answer.repeat): answer for result in own for answer in result.answers}
    answered = {key: answer for key, answer in everything.items() if answer.error is None}
    answers = list(answered.values())
    tokens = sum(answer.new_tokens for answer in answers)
    seconds = sum(result.seconds for result in own)
    places = [row.differs_at for row in rows if row.differs_at is not None]
    pair = [_rate_of_turns(side, measured.seed) for side in _matched(own, base)]
    plain: dict[str, int] = {}
    for row in rows:
        for reason, count in row.plain_cycles.items():
            plain[reason] = plain.get(reason, 0) + count
    return Figures(
        system=own[0].system,
        level=own[0].level,
        group=ALL,
        requests=len(everything),
        failed=len(everything) - len(answers),
        tokens=tokens,
        latencies=latencies_of(answers),
        user_rate=mean_of([row.user_rate for row in rows]),
        total_rate=_rate_of_turns(own, measured.seed),
        goodput=goodput_of(everything.values(), seconds, measured.targets) if measured.targets else None,
        met=_met(measured, ALL, everything),
        acceptance_length=mean_of([row.acceptance_length for row in rows]),
        hit_rate=mean_of([row.hit_rate for row in rows]),
        slot_acceptance=_slot_acceptance(answered, _draws(measured, ALL, answered)),
        drafting=drafting_sum(answers),
        speedup=mean_of([row.speedup for row in rows]),
        speedup_e2e=mean_of([row.speedup_e2e for row in rows]),
        speedup_total=quotient(*pair),
        identical=_sum(row.identical for row in rows),
        compared=_sum(row.compared for row in rows),
        differs_at=min(places, default=None),
        plain_cycles=plain,
        errors=errors_of(everything.values()),
        **_costs(measured, own, len(answers), tokens),
        peak_memory=peak_of(own, "peak"),
        gpu_peak_memory=peak_of(own, "gpu_peak"),
    )


def _pure_turns(measured: Measured, results: Sequence[TurnResult], group: str) -> list[TurnResult] | None:
    """The turns of a set; `None` where others shared them, so that they say nothing about it alone."""
    kept = []
    for result in results:
        groups = {measured.groups[answer.ask] for answer in result.answers}
        if group in groups:
            if len(groups) > 1:
                return None
            kept.append(result)
    return kept


def _matched(
    own: Sequence[TurnResult], base: Sequence[TurnResult]
) -> tuple[list[TurnResult], list[TurnResult]]:
    """Turns of the same requests, of which both systems answered every one.

    A refusal takes next to no time and gives no token: beside a turn that has one, the other system's says
    nothing about which of the two gives more tokens a second.
    """
    first, second = (
        {result.round: result for result in side if all(answer.error is None for answer in result.answers)}
        for side in (own, base)
    )
    rounds = [number for number in first if number in second]
    return [first[number] for number in rounds], [second[number] for number in rounds]


def _draws(measured: Measured, group: str, keys: Iterable[Key]) -> Draws:
    """The requests of these answers, and draws of them: the same for systems that gave the same answers."""
    asks = sorted({ask for ask, _ in keys})
    return asks, draw_weights(max(1, len(asks)), measured.seed, group)


def _rate(answers: Mapping[Key, Answer], draws: Draws) -> Estimate | None:
    return _columns(answers, draws, lambda a: float(a.decode_tokens), lambda a: a.decode_seconds)


def _total_rate(results: Sequence[TurnResult], draws: Draws) -> Estimate | None:
    """Tokens a second of turns, drawn by request where each turn has one, else by round."""
    if not all(len(result.answers) == 1 for result in results):
        return _rate_of_turns(results, 0)
    asks, weights = draws
    tokens, seconds = dict.fromkeys(asks, 0.0), dict.fromkeys(asks, 0.0)
    for result in results:
        ask = result.answers[0].ask
        if ask in tokens:
            tokens[ask] += result.answers[0].new_tokens
            seconds[ask] += result.seconds
    return ratio_of_sums([*tokens.values()], [*seconds.values()], weights)


def _rate_of_turns(results: Sequence[TurnResult], seed: int) -> Estimate | None:
    """Tokens a second over turns, drawn by round."""
    if not results:
        return None
    tokens = [float(sum(answer.new_tokens for answer in result.answers)) for result in results]
    return ratio_of_sums(tokens, [r.seconds for r in results], draw_weights(len(results), seed, "rounds"))


def _acceptance_length(answers: Mapping[Key, Answer], draws: Draws) -> Estimate | None:
    """Tokens a cycle: one at least, and at most one more than the deepest draft that was ever verified."""
    told = [answer.drafting for answer in answers.values() if answer.drafting is not None]
    deepest = max((len(one.slot_verified) for one in told), default=0)
    # A system that gives more tokens a cycle than it has told drafts of does not tell how deep it verifies.
    known = all(len(one.lengths) <= len(one.slot_verified) + 2 for one in told)
    most = deepest + 1.0 if known else math.inf
    found = _by_ask(answers, draws, "committed", "cycles")
    return None if found is None else found.within(1.0, most)


def _share(found: Estimate | None) -> Estimate | None:
    return None if found is None else found.within(0.0, 1.0)


def _met(measured: Measured, group: str, everything: Mapping[Key, Answer]) -> Estimate | None:
    """The share of good requests among all, failed ones included."""
    if not measured.targets:
        return None
    draws = _draws(measured, group, everything)
    return _share(_columns(everything, draws, lambda a: float(is_good(a, measured.targets)), lambda a: 1.0))


def _slot_acceptance(answers: Mapping[Key, Answer], draws: Draws) -> list[Estimate | None]:
    """By depth: accepted over verified, of requests that tell it."""
    told = {key: answer for key, answer in answers.items() if answer.drafting is not None}

    def at(slot: int) -> Estimate | None:
        def counted(name: str) -> Callable[[Answer], float]:
            return lambda a: float(sum(getattr(a.drafting, name)[slot : slot + 1]))

        return _share(_columns(told, draws, counted("slot_accepted"), counted("slot_verified")))

    counters = drafting_sum(list(told.values()))
    return [] if counters is None else [at(slot) for slot in range(len(counters.slot_verified))]


def _by_ask(answers: Mapping[Key, Answer], draws: Draws, top: str, bottom: str) -> Estimate | None:
    known = {key: answer for key, answer in answers.items() if answer.drafting is not None}
    if any(getattr(answer.drafting, name) is None for answer in known.values() for name in (top, bottom)):
        return None
    return _columns(
        known,
        draws,
        lambda a: float(getattr(a.drafting, top)),
        lambda a: float(getattr(a.drafting, bottom)),
    )


def _columns(
    answers: Mapping[Key, Answer],
    draws: Draws,
    top: Callable[[Answer], float],
    bottom: Callable[[Answer], float],
) -> Estimate | None:
    """A ratio of sums whose entries are requests, their repetitions together."""
    asks, weights = draws
    tops, bottoms = dict.fromkeys(asks, 0.0), dict.fromkeys(asks, 0.0)
    for (ask, _), answer in answers.items():
        tops[ask] += top(answer)
        bottoms[ask] += bottom(answer)
    return ratio_of_sums([*tops.values()], [*bottoms.values()], weights) if asks else None


def _speedup(
    measured: Measured,
    group: str,
    answers: Mapping[Key, Answer],
    others: Mapping[Key, Answer],
    shared: Sequence[Key],
    *,
    whole: bool,
) -> Estimate | None:
    """The baseline's seconds per token over this system's, over requests that both have answered."""
    pairs = [key for key in shared if whole or min(answers[key].decode_tokens, others[key].decode_tokens) > 0]
    draws = _draws(measured, group, pairs)

    def cost(of: Mapping[Key, Answer]) -> Estimate | None:
        chosen = {key: of[key] for key in pairs}
        if whole:
            return _columns(chosen, draws, lambda a: a.end or 0.0, lambda a: float(a.new_tokens))
        return _columns(chosen, draws, lambda a: a.decode_seconds, lambda a: float(a.decode_tokens))

    return quotient(cost(others), cost(answers))


def _speedup_total(
    measured: Measured, group: str, own: Sequence[TurnResult], base: Sequence[TurnResult]
) -> Estimate | None:
    """Tokens a second of the system over the baseline's, over turns of which both answered everything."""
    pair = _matched(own, base)
    keys = [(answer.ask, answer.repeat) for result in pair[0] for answer in result.answers]
    draws = _draws(measured, group, keys)
    return quotient(*(_total_rate(side, draws) for side in pair))


def _costs(
    measured: Measured, results: Sequence[TurnResult] | None, requests: int, tokens: int
) -> dict[str, float | None]:
    joules = joules_of(results) if results else None
    spent = None
    if results and measured.price is not None:
        spent = sum(result.seconds for result in results) * measured.price / 3600
    return {
        "joules": joules / requests if joules is not None and requests else None,
        "joules_token": joules / tokens if joules is not None and tokens else None,
        "cost_request": spent / requests if spent is not None and requests else None,
        "cost_million": spent / tokens * 1e6 if spent is not None and tokens else None,
    }


def _plain_cycles(answers: Iterable[Answer]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for answer in answers:
        for reason, count in answer.notes.get("plain_cycles", {}).items():
            counts[reason] = counts.get(reason, 0) + count
    return counts


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
