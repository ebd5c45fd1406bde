"""The charts of a report, from figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dflash_core.bench.figures import ALL, Figures
from dflash_core.bench.report.axes import BOTTOM, TOP, Axes, colour, nice_ticks, words
from dflash_core.bench.statistics import Estimate

ROW = 22
"""Pixels of a line of the chart of speed-ups."""

FEWEST = 10
"""Cycles that must have reached a slot for its rate to be drawn, where a run has that many at all."""

DEEPEST = 32
"""Slots and acceptance lengths beyond are left out of the charts; the tables have them all."""

ASIDE = 0.07
"""Slots between two systems' points of one slot."""

AT_ONCE = "at once"


def short(level: str) -> str:
    """A level's label where there is little room: "4", or "0.5/s"."""
    number = level.split()[0]
    return number if level.endswith(AT_ONCE) else f"{number}/s"


def overall(rows: Sequence[Figures]) -> list[Figures]:
    """The rows over all sets."""
    return [row for row in rows if row.group == ALL]


def frontier(rows: Sequence[Figures], systems: Sequence[str]) -> str | None:
    """Tokens a second of the whole system over what one user gets of them, a point a level."""
    points = {
        system: [
            (row.user_rate.value, row.total_rate.value, row.level)
            for row in overall(rows)
            if row.system == system and row.user_rate is not None and row.total_rate is not None
        ]
        for system in systems
    }
    every = [point for found in points.values() for point in found]
    if not every:
        return None
    across = nice_ticks(0.0, max(x for x, _, _ in every) * 1.08)
    up = nice_ticks(0.0, max(y for _, y, _ in every) * 1.08)
    axes = Axes((across[0], across[-1]), (up[0], up[-1]), "latency-throughput frontier")
    axes.ticks_x([(tick, words(tick)) for tick in across], "tokens a second that a user gets")
    axes.ticks_y([(tick, words(tick)) for tick in up], "tokens a second in total")
    several = len({level for _, _, level in every}) > 1
    for index, system in enumerate(systems):
        found = points[system]
        for closed in (True, False):
            # Users who wait and requests that arrive are two ways of pressing, and no line leads across.
            line = [(x, y) for x, y, level in found if level.endswith(AT_ONCE) == closed]
            if len(line) > 1:
                axes.path(line, colour(index))
        for x, y, level in found:
            axes.dot(x, y, colour(index), f"{system}, {level}: {x:.1f} a user, {y:.1f} in total")
            if several:
                axes.words(axes.at_x(x) + 7, axes.at_y(y) - 6, short(level), "start")
    return axes.svg()


def speedups(rows: Sequence[Figures], systems: Sequence[str], baseline: str | None) -> str | None:
    """Speed-up over the baseline with its interval, by set and system, at the first level."""
    level = rows[0].level if rows else ""
    shown = [row for row in rows if row.speedup is not None and row.system != baseline and row.level == level]
    groups = [*dict.fromkeys(row.group for row in shown if row.group != ALL)]
    if not shown:
        return None
    groups += [ALL] if len(groups) > 1 else []
    ordered = [row for group in groups for row in shown if row.group == group]
    ends = [
        value
        for row in ordered
        if row.speedup is not None
        for value in (row.speedup.low, row.speedup.high, row.speedup.value)
        if value is not None
    ]
    across = nice_ticks(min(0.0, *ends), max(1.0, *ends), 6)
    gaps = len(groups) - 1
    height = TOP + BOTTOM + ROW * (len(ordered) + gaps)
    axes = Axes((across[0], across[-1]), (0, len(ordered) + gaps), "speed-up", height=height, left=120)
    axes.ticks_x([(tick, f"{tick:g}x") for tick in across], f"times as fast as {baseline}")
    axes.line(axes.at_x(1), TOP, axes.at_x(1), height - BOTTOM, "unit")
    place = len(ordered) + gaps - 0.5
    for group in groups:
        own = [row for row in ordered if row.group == group]
        axes.words(112, axes.at_y(place - (len(own) - 1) / 2) + 4, group, "end", "axis")
        for row in own:
            _whisker(axes, row, place, colour(systems.index(row.system)))
            place -= 1
        place -= 1
    return axes.svg()


def acceptance_by_slot(rows: Sequence[Figures], systems: Sequence[str]) -> str | None:
    """How often a slot is accepted when everything before it was, at the first level."""
    curves: dict[str, list[tuple[int, Estimate]]] = {}
    for system, row in _first_level(rows, systems).items():
        reached = () if row.drafting is None else row.drafting.slot_verified
        pairs = zip(range(1, DEEPEST + 1), row.slot_acceptance, reached, strict=False)
        fewest = min(FEWEST, max(reached, default=0))
        curve = [(slot, rate) for slot, rate, count in pairs if rate is not None and count >= fewest]
        if curve:
            curves[system] = curve
    if not curves:
        return None
    deepest = max(slot for curve in curves.values() for slot, _ in curve)
    axes = Axes((0.5, deepest + 0.5), (0.0, 1.0), "acceptance by slot")
    axes.ticks_x(
        [(float(s), str(s)) for s in range(1, deepest + 1)], "slot of the block, the anchor left out"
    )
    axes.ticks_y(
        [(share / 5, f"{share * 20} %") for share in range(6)], "accepted, of those that were reached"
    )
    for place, (system, curve) in enumerate(curves.items()):
        shade = colour(systems.index(system))
        aside = (place - (len(curves) - 1) / 2) * ASIDE  # so that no interval hides another
        axes.path([(slot + aside, rate.value) for slot, rate in curve], shade)
        for slot, rate in curve:
            hint = f"{system}, slot {slot}: {rate.value:.1%}"
            if rate.low is not None and rate.high is not None:
                x = axes.at_x(slot + aside)
                axes.line(x, axes.at_y(rate.low), x, axes.at_y(rate.high), "whisker", shade)
                hint += f" ({rate.low:.1%} to {rate.high:.1%})"
            axes.dot(slot + aside, rate.value, shade, hint)
    return axes.svg()


def acceptance_lengths(rows: Sequence[Figures], systems: Sequence[str]) -> str | None:
    """Share of cycles by the tokens that they committed, at the first level."""
    found = _first_level(rows, systems)
    shares: dict[str, list[float]] = {}
    for system, row in found.items():
        if row.drafting is not None and row.drafting.cycles:
            shares[system] = [n / row.drafting.cycles for n in row.drafting.lengths[1 : DEEPEST + 1]]
    if not shares:
        return None
    longest = max(len(share) for share in shares.values())
    up = nice_ticks(0.0, max(max(share) for share in shares.values()))
    axes = Axes((0.5, longest + 0.5), (0.0, up[-1]), "histogram of acceptance lengths")
    names = [(float(n), str(n)) for n in range(1, longest + 1)]
    axes.ticks_x(names, "tokens of a cycle: accepted drafts and one more", grid=False)
    axes.ticks_y([(tick, f"{tick * 100:g} %") for tick in up], "share of cycles")
    width = 0.8 / len(shares)
    for index, (system, share) in enumerate(shares.items()):
        for length, part in enumerate(share, start=1):
            left = length - 0.4 + index * width
            hint = f"{system}: {part:.1%} of cycles gave {length}"
            axes.bar(left, left + width * 0.92, part, colour(systems.index(system)), hint)
    return axes.svg()


def _first_level(rows: Sequence[Figures], systems: Sequence[str]) -> Mapping[str, Figures]:
    level = rows[0].level if rows else ""
    found = {row.system: row for row in overall(rows) if row.level == level and row.drafting is not None}
    return {system: found[system] for system in systems if system in found}


def _whisker(axes: Axes, row: Figures, place: float, shade: str) -> None:
    estimate = row.speedup
    if estimate is None:
        return
    hint = f"{row.system} on {row.group}: {estimate.value:.2f}"
    if estimate.low is not None and estimate.high is not None:
        low, high, y = axes.at_x(estimate.low), axes.at_x(estimate.high), axes.at_y(place)
        axes.line(low, y, high, y, "whisker", shade)
        for end in (low, high):
            axes.line(end, y - 4, end, y + 4, "whisker", shade)
        hint += f" ({estimate.low:.2f} to {estimate.high:.2f})"
    axes.dot(estimate.value, place, shade, hint)
