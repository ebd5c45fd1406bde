"""A pair of axes in SVG: where numbers lie on paper, and the lines and words around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 18, 14, 52
"""Pixels around the plot for the words."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#5c5c5c")
"""Told apart by colour-blind people too. Source: Okabe and Ito 2008, the last two added."""


def colour(index: int) -> str:
    """Of the n-th system."""
    return COLOURS[index % len(COLOURS)]


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that cover a range, about so many."""
    span = high - low
    if not span > 0:
        span = abs(high) or 1.0
        low, high = low - span / 2, high + span / 2
    raw = span / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def words(number: float) -> str:
    """A tick's label."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:g}"


@dataclass
class Axes:
    """Collects the elements of one chart.

    Attributes:
        x, y: ranges of the data; their ends are the plot's corners.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    title: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    elements: list[str] = field(default_factory=list)

    def at_x(self, value: float) -> float:
        """Pixels from the left."""
        low, high = self.x
        return self.left + (value - low) / (high - low) * (self.width - self.left - RIGHT)

    def at_y(self, value: float) -> float:
        """Pixels from the top."""
        low, high = self.y
        return self.height - BOTTOM - (value - low) / (high - low) * (self.height - TOP - BOTTOM)

    def ticks_x(self, ticks: Sequence[tuple[float, str]], label: str, grid: bool = True) -> None:
        """Numbers or names under the plot."""
        bottom = self.height - BOTTOM
        for value, text in ticks:
            where = self.at_x(value)
            if grid:
                self.line(where, TOP, where, bottom, "grid")
            self.words(where, bottom + 18, text, "middle")
        self.words((self.left + self.width - RIGHT) / 2, self.height - 8, label, "middle", "axis")

    def ticks_y(self, ticks: Sequence[tuple[float, str]], label: str) -> None:
        """Numbers or names left of the plot; the label stands upright beside them."""
        for value, text in ticks:
            where = self.at_y(value)
            self.line(self.left, where, self.width - RIGHT, where, "grid")
            self.words(self.left - 8, where + 4, text, "end")
        middle = (TOP + self.height - BOTTOM) / 2
        if label:
            self.elements.append(
                f'<text class="axis" text-anchor="middle" transform="translate(14 {middle:.1f}) rotate(-90)">'
                f"{escape(label)}</text>"
            )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str, stroke: str = "") -> None:
        """A straight line between pixels."""
        style = f' stroke="{stroke}"' if stroke else ""
        self.elements.append(
            f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{style}/>'
        )

    def path(self, points: Sequence[tuple[float, float]], stroke: str) -> None:
        """A line through points of the data, in their order."""
        where = " ".join(f"{self.at_x(x):.1f},{self.at_y(y):.1f}" for x, y in points)
        self.elements.append(f'<polyline class="curve" points="{where}" stroke="{stroke}"/>')

    def dot(self, x: float, y: float, fill: str, hint: str) -> None:
        """A point of the data; `hint` is shown under the pointer."""
        self.elements.append(
            f'<circle cx="{self.at_x(x):.1f}" cy="{self.at_y(y):.1f}" r="4.5" fill="{fill}">'
            f"<title>{escape(hint)}</title></circle>"
        )

    def bar(self, x1: float, x2: float, y: float, fill: str, hint: str) -> None:
        """A bar from the bottom up to `y`, between two places of the data."""
        left, right, top = self.at_x(x1), self.at_x(x2), self.at_y(y)
        tall = self.height - BOTTOM - top
        self.elements.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(1.0, right - left):.1f}" height="{tall:.1f}" '
            f'fill="{fill}"><title>{escape(hint)}</title></rect>'
        )

    def words(self, x: float, y: float, text: str, anchor: str, kind: str = "tick") -> None:
        """Text at pixels."""
        self.elements.append(
            f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def svg(self) -> str:
        """The chart as an element of a page."""
        body = "\n".join(self.elements)
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(self.title)}">'
            f"\n{body}\n</svg>"
        )
