"""The figures of a benchmark on a terminal."""

from __future__ import annotations

from dflash_core.bench.benchmark import Outcome
from dflash_core.bench.report.tables import tables
from dflash_core.cli import output


def print_outcome(outcome: Outcome) -> None:
    """All tables, one after another."""
    for table in tables(outcome):
        output.print_table(table.columns, table.rows, title=table.title)
