"""Picks layouts from measured times."""

from collections.abc import Mapping

from dflash_kernels.few_row_linear.layouts import Layout

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
"""Row counts that are measured; those between are computed as the next one."""

GAIN = 0.03
"""Share of torch's own time that another layout must save at a row count; less is noise."""

Cost = Mapping[int, float]
"""Rows -> seconds of one product."""


def choose(costs: Mapping[Layout, Cost]) -> tuple[tuple[int, Layout], ...]:
    """Torch's own layout, except in one range of rows where one other layout saves the most, all told.

    One range and one layout, since what is faster at single row counts here and there is noise.

    Returns:
        (rows, layout) for each of `ROWS`.
    """
    chosen: Layout = "linear"
    inside, most = range(0), 0.0
    for layout, cost in costs.items():
        rows, saved = best_range(costs["linear"], cost)
        if saved > most:
            chosen, inside, most = layout, rows, saved
    return tuple((rows, chosen if rows in inside else "linear") for rows in ROWS)


def best_range(plain: Cost, cost: Cost) -> tuple[range, float]:
    """The rows between which `cost` saves most of `plain`, and the shares saved beyond `GAIN`, summed."""
    best, most = range(0), 0.0
    low, saved = ROWS[0], 0.0
    for rows in ROWS:
        if saved <= 0.0:
            low, saved = rows, 0.0
        saved += 1 - GAIN - cost[rows] / plain[rows]
        if saved > most:
            best, most = range(low, rows + 1), saved
    return best, most
