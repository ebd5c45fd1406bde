"""Times the layouts on a model's own weights."""

from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter

import torch
from torch import Tensor

from dflash_core.fastpath.choice import ROWS, Cost, choose
from dflash_core.fastpath.table import LayoutTable, Shape
from dflash_kernels.few_row_linear import few_row_linear
from dflash_kernels.few_row_linear.layouts import COLUMN, LINEAR, SLICED, Layout, available, pack

PACKED_FOR = 8
"""Rows that packed copies are made for: the usual verify lengths, and MKL pads up to it at little cost."""

PASSES = 12
BUDGET = 8.0
"""Seconds after which no further pass is begun; a busy machine gets fewer, but at least one."""

SAMPLE_BYTES = 640 * 2**20
"""Weights that are timed, where a model has more: so many that no cache holds them from pass to pass."""

Times = dict[tuple[Shape, Layout, int], float]
"""Shape, layout, rows -> seconds of one product, the mean of a pass over all weights of the best pass."""


def calibrate_layouts(weights: Sequence[Tensor], packed: bool = True) -> LayoutTable:
    """Find the fastest layout for each shape and row count.

    Many weights are multiplied one after the other, as in a forward, so that each is read from memory; the
    layouts take turns, so that a busy moment of the machine meets all of them; the least time counts. Takes
    some seconds.

    Args:
        weights: float32 CPU weights [out, in], in the order in which a forward uses them.
        packed: whether layouts may keep copies of the weights.
    """
    layouts, counts = candidates(packed), Counter(map(_shape, weights))
    timed = sample(weights)
    with torch.inference_mode():
        copies = {layout: [pack(weight, layout) for weight in timed] for layout in layouts}
        times = _time(timed, copies)
    costs = {shape: {layout: _cost(times, shape, layout) for layout in layouts} for shape in counts}
    steps = {shape: choose(costs[shape]) for shape in counts}
    seconds = {
        rows: sum(count * costs[shape][dict(steps[shape])[rows]][rows] for shape, count in counts.items())
        for rows in ROWS
    }
    return LayoutTable(steps, seconds)


def candidates(packed: bool) -> list[Layout]:
    """Layouts that are tried, by rising need of memory."""
    kinds = [kind for kind in ("onednn", "mkl") if packed and kind in available()]
    return [LINEAR, COLUMN, SLICED, *(Layout(kind, PACKED_FOR) for kind in kinds)]


def sample(weights: Sequence[Tensor]) -> list[Tensor]:
    """Of a large model every n-th weight, and at least one of each shape, in the model's order."""
    total = sum(weight.numel() * weight.element_size() for weight in weights)
    step = -(-total // SAMPLE_BYTES)
    seen: Counter[Shape] = Counter()
    chosen = []
    for weight in weights:
        if seen[_shape(weight)] % step == 0:
            chosen.append(weight.detach())
        seen[_shape(weight)] += 1
    return chosen


def _time(weights: Sequence[Tensor], copies: Mapping[Layout, Sequence[Tensor | None]]) -> Times:
    times: Times = {}
    counts = Counter(map(_shape, weights))
    started = perf_counter()
    for _ in range(PASSES):
        for rows in ROWS:
            inputs = {weight.shape[1]: torch.randn(rows, weight.shape[1]) for weight in weights}
            for layout, packed in copies.items():
                if not layout.serves(rows):
                    continue
                spent: dict[Shape, float] = dict.fromkeys(counts, 0.0)
                for weight, copy in zip(weights, packed, strict=True):
                    spent[_shape(weight)] += _seconds(inputs[weight.shape[1]], weight, layout, copy)
                for shape, count in counts.items():
                    key = shape, layout, rows
                    times[key] = min(spent[shape] / count, times.get(key, float("inf")))
        if perf_counter() - started > BUDGET:
            break
    return times


def _seconds(x: Tensor, weight: Tensor, layout: Layout, copy: Tensor | None) -> float:
    begin = perf_counter()
    few_row_linear(x, weight, None, layout, copy)
    return perf_counter() - begin


def _cost(times: Times, shape: Shape, layout: Layout) -> Cost:
    """Seconds by rows, as far as the layout serves.

    Disturbances only ever add time, and some rows cost no more than more rows: what more rows were measured
    to take is therefore an upper bound as well.
    """
    cost: dict[int, float] = {}
    least = float("inf")
    for rows in reversed(ROWS):
        if layout.serves(rows):
            least = min(least, times[shape, layout, rows])
            cost[rows] = least
    return cost


def _shape(weight: Tensor) -> Shape:
    return weight.shape[0], weight.shape[1]
