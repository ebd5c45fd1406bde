"""Times the layouts on a model's own weights."""

from collections import Counter
from collections.abc import Collection, Sequence
from time import perf_counter

import torch
from torch import Tensor

from dflash_core.fastpath.choice import ROWS, Cost, choose
from dflash_core.fastpath.table import LayoutTable, Shape, shape_of
from dflash_kernels.few_row_linear import few_row_linear
from dflash_kernels.few_row_linear.layouts import Layout, available

PASSES = 12
BUDGET = 12.0
"""Seconds after which no further pass is begun; a busy machine gets fewer, but at least one."""

SAMPLE_BYTES = 640 * 2**20
"""Weights that are timed, where a model has more: so many that no cache holds them from pass to pass."""

LEAST_BYTES = 320 * 2**20
"""And where a model has less, as much of copies."""

MOST_COPIES = 64
"""Of a toy."""

Times = dict[tuple[Shape, Layout, int], float]
"""Shape, layout, rows -> seconds of one product, the mean of a pass over all weights of the best pass."""


def calibrate_layouts(weights: Sequence[Tensor], narrow: Collection[Shape] = ()) -> LayoutTable:
    """Find the fastest layout for each shape and row count.

    Many weights are multiplied one after the other, as in a forward, so that each is read from memory; the
    layouts take turns, so that a busy moment of the machine meets all of them; the least time counts. Takes
    some seconds.

    Args:
        weights: float32 CPU weights [out, in], in the order in which a forward uses them.
        narrow: shapes whose weights the compiled layout will have in bfloat16.
    """
    counts = Counter(map(shape_of, weights))
    with torch.inference_mode():
        times = _time(beyond_cache(sample(weights)), narrow)
    costs = {shape: {layout: _cost(times, shape, layout) for layout in available()} for shape in counts}
    steps = {shape: choose(costs[shape]) for shape in counts}
    seconds = {
        rows: sum(count * costs[shape][dict(steps[shape])[rows]][rows] for shape, count in counts.items())
        for rows in ROWS
    }
    return LayoutTable(steps, seconds)


def beyond_cache(weights: Sequence[Tensor]) -> list[Tensor]:
    """The weights, with copies of them where they are so small that a cache would hold them between passes.

    A draft's weights are small, but between two drafts the target's go through the cache.
    """
    total = sum(weight.numel() * weight.element_size() for weight in weights)
    copies = min(MOST_COPIES, -(-LEAST_BYTES // max(1, total)) - 1)
    return [*weights, *(weight.clone() for _ in range(copies) for weight in weights)]


def sample(weights: Sequence[Tensor]) -> list[Tensor]:
    """Of a large model every n-th weight, and at least one of each shape, in the model's order."""
    total = sum(weight.numel() * weight.element_size() for weight in weights)
    step = -(-total // SAMPLE_BYTES)
    seen: Counter[Shape] = Counter()
    chosen = []
    for weight in weights:
        if seen[shape_of(weight)] % step == 0:
            chosen.append(weight.detach())
        seen[shape_of(weight)] += 1
    return chosen


def _time(weights: Sequence[Tensor], narrow: Collection[Shape]) -> Times:
    times: Times = {}
    counts = Counter(map(shape_of, weights))
    halves = [weight.bfloat16() if shape_of(weight) in narrow else weight for weight in weights]
    started = perf_counter()
    for _ in range(PASSES):
        for rows in ROWS:
            inputs = {weight.shape[1]: torch.randn(rows, weight.shape[1]) for weight in weights}
            for layout in available():
                spent: dict[Shape, float] = dict.fromkeys(counts, 0.0)
                for weight in halves if layout == "compiled" else weights:
                    spent[shape_of(weight)] += _seconds(inputs[weight.shape[1]], weight, layout)
                for shape, count in counts.items():
                    key = shape, layout, rows
                    times[key] = min(spent[shape] / count, times.get(key, float("inf")))
        if perf_counter() - started > BUDGET:
            break
    return times


def _seconds(x: Tensor, weight: Tensor, layout: Layout) -> float:
    begin = perf_counter()
    few_row_linear(x, weight, None, layout)
    return perf_counter() - begin


def _cost(times: Times, shape: Shape, layout: Layout) -> Cost:
    """Seconds by rows.

    Disturbances only ever add time, and some rows cost no more than more rows: what more rows were measured
    to take is therefore an upper bound as well.
    """
    cost: dict[int, float] = {}
    least = float("inf")
    for rows in reversed(ROWS):
        least = min(least, times[shape, layout, rows])
        cost[rows] = least
    return cost
