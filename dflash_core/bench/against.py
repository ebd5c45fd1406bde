"""Two runs of the same benchmark: which figures agree within what both say of how sure they are."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core.bench.figures import Figures
from dflash_core.bench.statistics import Estimate
from dflash_core.errors import SettingsError

COMPARED = ("speedup", "speedup_e2e", "speedup_total", "acceptance_length", "hit_rate")
"""Figures that a slower day of the same machine leaves as they are; rates and latencies it does not."""

Figure = tuple[float, float | None, float | None]
"""A value and the ends of its interval, `None` where there is none."""

Earlier = Mapping[tuple[str, str, str], Mapping[str, Figure]]
"""Figures by name, by system, level and set."""


@dataclass(frozen=True)
class Agreement:
    """One figure in both runs.

    Attributes:
        agree: whether the intervals meet.
    """

    system: str
    level: str
    group: str
    metric: str
    earlier: Figure
    now: Figure
    agree: bool


def read_earlier(path: Path) -> Earlier:
    """The figures of what `--json` has printed before.

    Raises:
        SettingsError: the file cannot be read, or is none of `dflash-core bench --json`.
    """
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
        return {(str(row["system"]), str(row["level"]), str(row["group"])): _figures(row) for row in figures}
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SettingsError(f"{path} is not what `dflash-core bench --json` prints.") from None


def _figures(row: Mapping[str, Any]) -> dict[str, Figure]:
    """Those of a row that are compared, as far as it has them."""
    return {name: _figure(row[name]) for name in COMPARED if row.get(name) is not None}


def _figure(one: Mapping[str, Any]) -> Figure:
    low, high = (None if one[end] is None else _number(one[end]) for end in ("low", "high"))
    return _number(one["value"]), low, high


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError
    return float(value)


def compare_runs(earlier: Earlier, rows: Sequence[Figures]) -> list[Agreement]:
    """Every figure that both runs have, of the same system, level and set."""
    return [
        agreement
        for row in rows
        for agreement in _of_row(earlier.get((row.system, row.level, row.group), {}), row)
    ]


def _of_row(before: Mapping[str, Figure], row: Figures) -> Iterator[Agreement]:
    for metric, old in before.items():
        estimate = getattr(row, metric)
        if isinstance(estimate, Estimate):
            new = (estimate.value, estimate.low, estimate.high)
            yield Agreement(row.system, row.level, row.group, metric, old, new, _meet(old, new))


def _meet(old: Figure, new: Figure) -> bool:
    """Whether two intervals have a point in common; a figure without one is its own."""
    (low, high), (other_low, other_high) = _ends(old), _ends(new)
    return max(low, other_low) <= min(high, other_high)


def _ends(figure: Figure) -> tuple[float, float]:
    value, low, high = figure
    return (value if low is None else low), (value if high is None else high)
