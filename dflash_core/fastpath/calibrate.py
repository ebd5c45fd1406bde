"""Times the layouts on a model's own weights."""

from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter

import torch
from torch import Tensor

from dflash_core.fastpath.choice import ROWS, Cost, choose
from dflash_core.fastpath.table import LayoutTable, Shape
from dflash_kernels.few_row_linear import few_row_linear
from dflash_kernels.few_row_linear.layouts import COLUMN, LINEAR, Layout, available, pack

PACKED_FOR = 8
"""Rows that packed copies are made for: the usual verify lengths, and MKL pads up to it at little cost."""

PASSES = 12
BUDGET = 8.0
"""Seconds after which no further pass is begun; a busy machine gets fewer, but at least one."""

SAMPLE = 12
"""Pieces of weights of each shape that are timed, each read from memory anew."""

PIECE_BYTES = 4 * 2**20
"""Larger weights are timed in slices: on a busy machine, only short products ever run undisturbed."""

Times = dict[tuple[Shape, Layout, int], float]
"""Shape, layout, rows -> least seconds of one product."""


def calibrate_layouts(weights: Sequence[Tensor], packed: bool = True) -> LayoutTable:
    """Find the fastest layout for each shape and row count.

    Many weights are multiplied one after the other, as in a forward, so that each is read from memory; the
    layouts take turns, so that a busy moment of the machine meets all of them; the least time counts. Takes
    some seconds.

    Args:
        weights: float32 CPU weights [out, in], in the order in which a forward uses them.
        packed: whether layouts may keep copies of the weights.
    """
    layouts, counts = _layouts(packed), Counter(map(_shape, weights))
    pieces = _pieces(weights)
    with torch.inference_mode():
        copies = {layout: [pack(piece, layout) for _, piece in pieces] for layout in layouts}
        times = _time(pieces, copies)
    costs = {shape: {layout: _cost(times, shape, layout) for layout in layouts} for shape in counts}
    steps = {shape: choose(costs[shape]) for shape in counts}
    seconds = {
        rows: sum(count * costs[shape][dict(steps[shape])[rows]][rows] for shape, count in counts.items())
        for rows in ROWS
    }
    return LayoutTable(steps, seconds)


def _layouts(packed: bool) -> list[Layout]:
    """Candidates, by rising need of memory."""
    kinds = [kind for kind in ("onednn", "mkl") if packed and kind in available()]
    return [LINEAR, COLUMN, *(Layout(kind, PACKED_FOR) for kind in kinds)]


def _pieces(weights: Sequence[Tensor]) -> list[tuple[Shape, Tensor]]:
    """Slices of weights and the shapes they stand for, those of one shape far from each other."""
    by_shape: dict[Shape, list[Tensor]] = {}
    for weight in weights:
        by_shape.setdefault(_shape(weight), []).append(weight.detach())
    columns = []
    for shape, alike in by_shape.items():
        rows = max(1, min(shape[0], PIECE_BYTES // (shape[1] * alike[0].element_size())))
        slices = [piece for weight in alike for piece in weight.split(rows) if len(piece) == rows]
        columns.append([(shape, slices[index * len(slices) // SAMPLE]) for index in range(SAMPLE)])
    return [piece for row in zip(*columns, strict=True) for piece in row]


def _time(pieces: Sequence[tuple[Shape, Tensor]], copies: Mapping[Layout, Sequence[Tensor | None]]) -> Times:
    times: Times = {}
    widths = {piece.shape[1] for _, piece in pieces}
    started = perf_counter()
    for _ in range(PASSES):
        for rows in ROWS:
            inputs = {inner: torch.randn(rows, inner) for inner in widths}
            for layout, packed in copies.items():
                for (shape, piece), copy in zip(pieces, packed, strict=True) if layout.serves(rows) else ():
                    whole = shape[0] / len(piece)
                    spent = whole * _seconds(inputs[shape[1]], piece, layout, copy)
                    key = shape, layout, rows
                    times[key] = min(spent, times.get(key, spent))
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
