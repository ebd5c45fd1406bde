"""The figures of a benchmark as rows of words, the same on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dflash_core.bench.benchmark import Outcome
from dflash_core.bench.figures import ALL, QUANTILES, Figures
from dflash_core.bench.statistics import Estimate
from dflash_core.bench.targets import LATENCIES

Cell = str | int | None
UNREPORTED = "not reported"
OVERALL = "all sets"

REASONS = 5
"""Of failures, that a table names; the JSON has them all."""


@dataclass(frozen=True)
class Table:
    """Words in rows; `None` is what does not apply."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def tables(outcome: Outcome) -> list[Table]:
    """Speed, failures, latencies, drafts, resources and claims; what there is none of is left out."""
    groups = {row.group for row in outcome.rows} - {ALL}
    rows = [row for row in outcome.rows if row.group != ALL or len(groups) != 1]
    found = [speed(rows, outcome.baseline)]
    if any(row.errors for row in rows):
        found.append(failures([row for row in outcome.rows if row.group == ALL]))
    found.append(latencies(rows))
    if any(row.drafting is not None for row in rows):
        found.append(drafts([row for row in rows if row.drafting is not None]))
    if any(row.slot_acceptance for row in rows):
        found.append(slots([row for row in rows if row.slot_acceptance]))
    found.append(resources([row for row in outcome.rows if row.group == ALL], outcome))
    if outcome.checks:
        found.append(claims(outcome))
    if outcome.agreements:
        found.append(agreements(outcome))
    return found


def speed(rows: Sequence[Figures], baseline: str | None) -> Table:
    """Rates and ratios to the baseline."""
    columns = ("tok/s a user", "tok/s", "speed-up", "end to end", "throughput", "identical")
    return Table(
        f"Speed; ratios to {baseline}, with 95 % intervals; over all sets their mean"
        if baseline
        else "Speed; there is no baseline",
        ("level", "system", "set", "requests", *columns),
        tuple(
            (
                *_name(row),
                f"{row.requests} ({row.failed} failed)" if row.failed else row.requests,
                None if row.user_rate is None else f"{row.user_rate.value:.1f}",
                None if row.total_rate is None else f"{row.total_rate.value:.1f}",
                *(
                    (None,) * 4
                    if row.system == baseline
                    else (
                        interval(row.speedup),
                        interval(row.speedup_e2e),
                        interval(row.speedup_total),
                        identical(row),
                    )
                ),
            )
            for row in rows
        ),
    )


def failures(rows: Sequence[Figures]) -> Table:
    """Why requests failed, by level and system."""
    return Table(
        "Failed requests, by reason",
        ("level", "system", "requests", "reason"),
        tuple((row.level, row.system, count, reason) for row in rows for reason, count in reasons(row)),
    )


def reasons(row: Figures) -> list[tuple[str, int]]:
    """The most frequent ones, and how many requests failed for others."""
    told = [*row.errors.items()][:REASONS]
    rest = row.failed - sum(count for _, count in told)
    return [*told, ("other reasons", rest)] if rest else told


def latencies(rows: Sequence[Figures]) -> Table:
    """Time to the first token, per token after it, and to the last one."""
    pairs = [(name, quantile) for name in LATENCIES for quantile in QUANTILES]
    return Table(
        "Latencies of requests in milliseconds",
        ("level", "system", "set", *(f"{name} {quantile}" for name, quantile in pairs)),
        tuple((*_name(row), *(milliseconds(row.latencies[n][q]) for n, q in pairs)) for row in rows),
    )


def drafts(rows: Sequence[Figures]) -> Table:
    """How drafts fared."""
    return Table(
        "Drafts, with 95 % intervals",
        ("level", "system", "set", "acceptance length", "hit rate", "without a draft"),
        tuple(
            (
                *_name(row),
                interval(row.acceptance_length),
                interval(row.hit_rate),
                plain_share(row),
            )
            for row in rows
        ),
    )


def slots(rows: Sequence[Figures]) -> Table:
    """How often a slot was accepted when all before it were; slot 1 is the first draft."""
    deepest = max(len(row.slot_acceptance) for row in rows)
    return Table(
        "Drafts: acceptance by slot, of those reached, with 95 % intervals",
        ("level", "system", "set", *(f"slot {slot + 1}" for slot in range(deepest))),
        tuple(
            (
                *_name(row),
                *(interval(rate) for rate in row.slot_acceptance),
                *(None,) * (deepest - len(row.slot_acceptance)),
            )
            for row in rows
        ),
    )


def resources(rows: Sequence[Figures], outcome: Outcome) -> Table:
    """Goodput, memory, cost and energy; what nobody asked for is left out, energy never."""
    columns: list[tuple[str, Callable[[Figures], Cell]]] = []
    if outcome.options.get("latency_targets"):
        columns += [
            ("good requests/s", lambda row: None if row.goodput is None else f"{row.goodput:.3g}"),
            ("good share", lambda row: interval(row.met, ".0%")),
        ]
    columns.append(("peak memory", lambda row: gigabytes(row.peak_memory)))
    if any(row.gpu_peak_memory is not None for row in rows):
        columns.append(("peak GPU memory", lambda row: gigabytes(row.gpu_peak_memory)))
    if outcome.options.get("price_per_hour") is not None:
        columns += [
            ("cost a request", lambda row: money(row.cost_request)),
            (
                "cost a million tokens",
                lambda row: money(row.cost_million),
            ),
        ]
    columns.append(
        ("energy a request", lambda row: UNREPORTED if row.joules is None else f"{row.joules:.3g} J")
    )
    return Table(
        "Resources (memory is of this whole process, with the models of all systems)",
        ("level", "system", *(name for name, _ in columns)),
        tuple((row.level, row.system, *(cell(row) for _, cell in columns)) for row in rows),
    )


def claims(outcome: Outcome) -> Table:
    """Claims and whether they hold."""
    return Table(
        "Claims",
        ("claim", "system", "level", "value", "holds"),
        tuple(
            (
                check.claim.text,
                check.system,
                check.level,
                check.reason if check.value is None else f"{check.value:.4g}",
                "yes" if check.holds else "NO",
            )
            for check in outcome.checks
        ),
    )


def agreements(outcome: Outcome) -> Table:
    """An earlier run beside this one."""
    return Table(
        "Against the earlier run: whether both intervals meet",
        ("level", "system", "set", "figure", "earlier", "now", "agree"),
        tuple(
            (
                *_named(one.level, one.system, one.group),
                one.metric.replace("_", " "),
                span(*one.earlier),
                span(*one.now),
                "yes" if one.agree else "NO",
            )
            for one in outcome.agreements
        ),
    )


def interval(estimate: Estimate | None, form: str = ".2f") -> str | None:
    """E.g. "1.52 (1.44 to 1.61)"; without what cannot be said of a single request."""
    return None if estimate is None else span(estimate.value, estimate.low, estimate.high, form)


def span(value: float, low: float | None, high: float | None, form: str = ".2f") -> str:
    """A value and the ends of its interval."""
    ends = "" if low is None or high is None else f" ({low:{form}} to {high:{form}})"
    return f"{value:{form}}{ends}"


def identical(row: Figures) -> str | None:
    """E.g. "9/10, from 31": one answer of ten leaves the baseline's at its 31st token (or character)."""
    if row.compared is None:
        return None
    where = "" if row.differs_at is None else f", from {row.differs_at}"
    return f"{row.identical}/{row.compared}{where}"


def plain_share(row: Figures) -> str | None:
    """Share of cycles that the schedule decoded plainly, with no more than two reasons."""
    cycles = 0 if row.drafting is None else row.drafting.cycles
    if not cycles or not row.plain_cycles:
        return None
    most = sorted(row.plain_cycles.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{count / cycles:.0%} {reason}" for reason, count in most)


def milliseconds(seconds: float | None) -> str | None:
    """Seconds as milliseconds, three digits or so."""
    if seconds is None:
        return None
    return f"{seconds * 1000:.2f}" if seconds < 0.1 else f"{seconds * 1000:.0f}"


def money(amount: float | None) -> str | None:
    """Three digits, never with an exponent."""
    return None if amount is None else np.format_float_positional(amount, 3, fractional=False, trim="-")


def gigabytes(count: int | None) -> str:
    """Bytes as GB."""
    return UNREPORTED if count is None else f"{count / 2**30:.2f} GB"


def _name(row: Figures) -> tuple[str, str, str]:
    return _named(row.level, row.system, row.group)


def _named(level: str, system: str, group: str) -> tuple[str, str, str]:
    return level, system, OVERALL if group == ALL else group
