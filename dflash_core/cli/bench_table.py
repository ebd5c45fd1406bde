"""The figures of a benchmark on a terminal."""

from __future__ import annotations

import sys

from dflash_core.bench.benchmark import Outcome
from dflash_core.bench.report.tables import tables
from dflash_core.cli import output


def print_outcome(outcome: Outcome, as_json: bool) -> None:
    """One JSON object, or all tables one after another.

    Raises:
        OSError: standard output cannot be written.
    """
    if as_json:
        output.print_json(outcome.to_dict())
        sys.stdout.flush()  # whether it arrived is known while something can still be said about it
        return
    for table in tables(outcome):
        output.print_table(table.columns, table.rows, title=table.title)
