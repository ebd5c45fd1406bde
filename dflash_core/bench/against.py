"""Two runs of the same benchmark: which figures agree within what both say of how sure they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core.bench.figures import Figures
from dflash_core.bench.statistics import Estimate
from dflash_core.errors import SettingsError

COMPARED = ("speedup", "speedup_e2e", "speedup_total", "acceptance_length", "hit_rate")
"""Figures that a slower day of the same machine leaves as they are; rates and latencies it does not."""


@dataclass(frozen=True)
class Agreement:
    """One figure in both runs.

    Attributes:
        earlier, now: value and the ends of its interval, `None` where there is none.
        agree: whether the intervals meet.
    """

    system: str
    level: str
    group: str
    metric: str
    earlier: tuple[float, float | None, float | None]
    now: tuple[float, float | None, float | None]
    agree: bool


def read_earlier(path: Path) -> list[Mapping[str, Any]]:
    """The figures of what `--json` has printed before.

    Raises:
        SettingsError: the file cannot be read, or is none of `dflash-core bench --json`.
    """
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
        return [{**row, "key": (row["system"], row["level"], row["group"])} for row in figures]
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise SettingsError(f"{path} is not what `dflash-core bench --json` prints.") from None


def compare_runs(earlier: Sequence[Mapping[str, Any]], rows: Sequence[Figures]) -> list[Agreement]:
    """Every figure that both runs have, of the same system, level and set."""
    known = {row["key"]: row for row in earlier}
    return [
        agreement
        for row in rows
        if (row.system, row.level, row.group) in known
        for agreement in _of_row(known[row.system, row.level, row.group], row)
    ]


def _of_row(before: Mapping[str, Any], row: Figures) -> Iterator[Agreement]:
    for metric in COMPARED:
        then, estimate = before.get(metric), getattr(row, metric)
        if not isinstance(then, Mapping) or not isinstance(estimate, Estimate):
            continue
        old = (then["value"], then.get("low"), then.get("high"))
        new = (estimate.value, estimate.low, estimate.high)
        yield Agreement(row.system, row.level, row.group, metric, old, new, _meet(old, new))


def _meet(
    old: tuple[float, float | None, float | None], new: tuple[float, float | None, float | None]
) -> bool:
    """Whether two intervals have a point in common; a figure without one is its own."""
    (low, high), (other_low, other_high) = _ends(old), _ends(new)
    return max(low, other_low) <= min(high, other_high)


def _ends(figure: tuple[float, float | None, float | None]) -> tuple[float, float]:
    value, low, high = figure
    return (value if low is None else low), (value if high is None else high)
