"""How commands talk: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 160
"""Columns of a table that is not shown on a terminal: wide enough for paths, narrow enough to read."""


def console(stream: TextIO | None = None) -> Console:
    """A console on a stream (standard output by default) that leaves square brackets in text alone."""
    stream = sys.stdout if stream is None else stream
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def print_json(data: Any) -> None:
    """One JSON document; NaN and infinity, which JSON has no word for, are an error."""
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table of plain values; `None` is shown as a dash, floats with three digits, numbers to the right."""
    rows = [tuple(row) for row in rows]
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        numeric = any(_is_number(row[index]) for row in rows)
        table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    console().print(table)


def note(message: str) -> None:
    """A remark that is not part of the result, on standard error."""
    with suppress(OSError):  # nobody is listening, and the result does not depend on it
        console(sys.stderr).print(message, soft_wrap=True)


def progress() -> Progress:
    """A progress bar on standard error that is shown on terminals only and leaves nothing behind."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console(sys.stderr), transient=True, disable=not sys.stderr.isatty())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
