"""Which layout is fastest for how many rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dflash_kernels.few_row_linear.layouts import LAYOUTS, Layout

Shape = tuple[int, int]
"""[out, in] of a weight."""


def shape_of(weight: Tensor) -> Shape:
    """Of a weight."""
    return weight.shape[0], weight.shape[1]


@dataclass(frozen=True)
class LayoutTable:
    """Layouts by weight shape and row count.

    Attributes:
        steps: shape -> (most rows, layout) in rising order of rows; beyond the last step, and for a shape
            that is not here, the product is torch's own.
        seconds: rows -> seconds of one pass over all the weights measured, each in its chosen layout.
    """

    steps: Mapping[Shape, tuple[tuple[int, Layout], ...]]
    seconds: Mapping[int, float]

    def layouts(self, shape: Shape) -> tuple[Layout, ...]:
        """The layout for each row count: entry n is for n rows."""
        chosen: list[Layout] = ["linear"]
        for rows, layout in self.steps.get(shape, ()):
            chosen += [layout] * (rows + 1 - len(chosen))
        return tuple(chosen)

    def to_json(self) -> dict[str, Any]:
        """A JSON value that `from_json` reads."""
        return {
            "steps": {
                f"{out}x{inner}": [[rows, layout] for rows, layout in steps]
                for (out, inner), steps in self.steps.items()
            },
            "seconds": {str(rows): seconds for rows, seconds in self.seconds.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> "LayoutTable":
        """Raises ValueError for anything that `to_json` does not write."""
        try:
            steps = {_shape(text): tuple(_steps(rows)) for text, rows in value["steps"].items()}
            seconds = {int(rows): float(spent) for rows, spent in value["seconds"].items()}
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a table of layouts: {error!r}") from error
        return cls(steps, seconds)


def _shape(text: str) -> Shape:
    out, inner = text.split("x")
    return int(out), int(inner)


def _steps(entries: Iterable[tuple[int, Layout]]) -> Iterable[tuple[int, Layout]]:
    last = 0
    for rows, text in entries:
        if rows <= last or text not in LAYOUTS:
            raise ValueError(f"layout {text} for {rows} rows after {last}")
        last = rows
        yield rows, text
