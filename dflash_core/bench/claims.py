"""Claims about figures, checked: `--assert "speedup >= 1.5 at p05"`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from dflash_core.bench.figures import ALL, QUANTILES, Figures
from dflash_core.bench.statistics import Estimate
from dflash_core.errors import SettingsError

Value = float | Estimate | None

METRICS: dict[str, Callable[[Figures], Value]] = {
    "speedup": lambda f: f.speedup,
    "speedup_e2e": lambda f: f.speedup_e2e,
    "speedup_total": lambda f: f.speedup_total,
    "acceptance_length": lambda f: f.acceptance_length,
    "hit_rate": lambda f: f.hit_rate,
    "user_rate": lambda f: f.user_rate,
    "total_rate": lambda f: f.total_rate,
    "goodput": lambda f: f.goodput,
    "met": lambda f: f.met,
    "identical": lambda f: None if not f.compared or f.identical is None else f.identical / f.compared,
    "failed": lambda f: float(f.failed),
    "cost_request": lambda f: f.cost_request,
    "cost_million": lambda f: f.cost_million,
    "joules": lambda f: f.joules,
    "peak_memory": lambda f: None if f.peak_memory is None else float(f.peak_memory),
}
LATENCIES = ("ttft", "tpot", "e2e")
AGAINST_BASELINE = ("speedup", "speedup_e2e", "speedup_total", "identical")
"""Of the baseline itself these say nothing."""

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": math.isclose,
}
UNITS = {"": 1.0, "%": 0.01, "ms": 0.001, "s": 1.0, "x": 1.0, "mb": 2.0**20, "gb": 2.0**30}

CLAIM = re.compile(
    r"\s*(?P<metric>\w+)"
    r"(?:\s+of\s+(?P<system>'[^']+'|\"[^\"]+\"|\S+))?"
    r"(?:\s+on\s+(?P<group>\S+))?"
    r"(?:\s+with\s+(?P<level>\d+\s+at\s+once|[\d.]+\s+a\s+second))?"
    r"\s*(?P<operator>>=|<=|==|>|<)"
    r"\s*(?P<number>-?\d+(?:\.\d+)?)\s*(?P<unit>%|[a-zA-Z]+)??"
    r"(?:\s+at\s+p(?P<quantile>\d{1,2}(?:\.\d+)?))?\s*"
)
HELP = (
    'a claim reads METRIC [of SYSTEM] [on SET] [with "N at once" or "R a second"] >= NUMBER [at pNN], '
    'e.g. "speedup >= 1.5 at p05"'
)


@dataclass(frozen=True)
class Claim:
    """One condition. `None` for system and level stands for all, `group` is the row over all sets by default.

    Attributes:
        quantile: 0 to 1. Of rates and ratios it is the bootstrap's ("at p05": 95 % of draws are higher), of
            latencies that of the requests ("at p95": 95 % of requests are faster).
    """

    text: str
    metric: str
    comparison: str
    bound: float
    system: str | None = None
    group: str = ALL
    level: str | None = None
    quantile: float | None = None


@dataclass(frozen=True)
class Check:
    """A claim about one row. `value` is `None` when the row does not have it, and then it does not hold."""

    claim: Claim
    system: str
    level: str
    value: float | None
    holds: bool
    reason: str = ""


def parse_claim(text: str) -> Claim:
    """A claim from its text.

    Raises:
        SettingsError: it cannot be read; the message says how one reads.
    """
    found = CLAIM.fullmatch(text)
    if found is None:
        raise SettingsError(f"--assert {text!r} cannot be read: {HELP}.")
    metric, quantile = found["metric"], found["quantile"]
    known = [*METRICS, *LATENCIES]
    if metric not in known:
        near = get_close_matches(metric, known, 1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        raise SettingsError(
            f"--assert {text!r}: there is no {metric!r}.{guess} There are {', '.join(known)}."
        )
    unit = (found["unit"] or "").lower()
    if unit not in UNITS:
        raise SettingsError(f"--assert {text!r}: the unit {found['unit']!r} is none of %, ms, s, x, MB, GB.")
    if metric in LATENCIES and quantile is not None and f"p{quantile}" not in QUANTILES:
        raise SettingsError(
            f"--assert {text!r}: latencies are measured at {', '.join(QUANTILES)}, not at p{quantile}."
        )
    system = found["system"]
    return Claim(
        text=text.strip(),
        metric=metric,
        comparison=found["operator"],
        bound=float(found["number"]) * UNITS[unit],
        system=system.strip("'\"") if system else None,
        group=found["group"] or ALL,
        level=" ".join(found["level"].split()) if found["level"] else None,
        quantile=None if quantile is None else float(quantile) / 100,
    )


def check_names(
    claims: Sequence[Claim], systems: Sequence[str], groups: Sequence[str], levels: Sequence[str]
) -> None:
    """Refuse, before anything is measured, claims about what is not going to be measured.

    Raises:
        SettingsError: a claim names a system, a set or a level that is not part of the benchmark.
    """
    for claim in claims:
        for word, name, there in (
            ("system", claim.system, systems),
            ("set", claim.group, [*groups, ALL]),
            ("level", claim.level, levels),
        ):
            if name is not None and name not in there:
                raise SettingsError(
                    f"--assert {claim.text!r}: there is no {word} {name!r}; there are {', '.join(there)}."
                )


def check_claims(claims: Sequence[Claim], rows: Sequence[Figures], baseline: str | None) -> list[Check]:
    """Every claim against every row it is about. A claim that is about no row at all does not hold."""
    checks: list[Check] = []
    for claim in claims:
        found = list(_check(claim, rows, baseline))
        checks += found or [
            Check(claim, claim.system or "-", claim.level or "-", None, False, "nothing measured")
        ]
    return checks


def _check(claim: Claim, rows: Sequence[Figures], baseline: str | None) -> Iterator[Check]:
    for row in rows:
        if row.group != claim.group or claim.system not in (None, row.system):
            continue
        if claim.level not in (None, row.level):
            continue
        if claim.system is None and row.system == baseline and claim.metric in AGAINST_BASELINE:
            continue
        value, reason = _value(claim, row)
        holds = value is not None and OPERATORS[claim.comparison](value, claim.bound)
        yield Check(claim, row.system, row.level, value, holds, reason)


def _value(claim: Claim, row: Figures) -> tuple[float | None, str]:
    if claim.metric in LATENCIES:
        label = "p50" if claim.quantile is None else f"p{round(claim.quantile * 100)}"
        value = row.latencies[claim.metric][label]
        return value, "" if value is not None else "not measured"
    found = METRICS[claim.metric](row)
    if found is None:
        return None, "not reported"
    if claim.quantile is None:
        return found.value if isinstance(found, Estimate) else found, ""
    if not isinstance(found, Estimate):
        return None, f"{claim.metric} has no interval; leave `at` out"
    value = found.at(claim.quantile)
    return value, "" if value is not None else "an interval needs two requests of each set"
