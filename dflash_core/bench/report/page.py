"""One HTML file with everything in it: charts, tables, the environment, and how to read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from dflash_core.bench.benchmark import Outcome
from dflash_core.bench.environment import changes
from dflash_core.bench.report.axes import colour
from dflash_core.bench.report.charts import acceptance_by_slot, acceptance_lengths, frontier, speedups
from dflash_core.bench.report.tables import OVERALL, Table, tables
from dflash_core.errors import DFlashError

STYLE = """
:root { color-scheme: light; --ink: #1c1f24; --soft: #5b6472; --line: #dfe3e8; --card: #fff;
  --page: #f5f6f8; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1360px; padding: 28px 24px 60px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 25px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 0 0 2px; }
p { margin: 0 0 10px; color: var(--soft); } header { margin-bottom: 18px; }
.cards { display: grid; gap: 18px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 560px), 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px 18px;
  margin-bottom: 18px; overflow-x: auto; } .cards .card { margin: 0; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; margin: 0 0 18px; }
.legend span { display: inline-flex; align-items: center; gap: 7px; }
.legend i { width: 12px; height: 12px; border-radius: 3px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 600; border-bottom: 1px solid var(--line); }
th, td { padding: 5px 20px 5px 0; white-space: nowrap; vertical-align: top; }
td { border-bottom: 1px solid #eef0f3; } tr.mean td { font-weight: 600; }
tr.level td { border-top: 2px solid var(--line); } td.number, th.number { text-align: right; }
td.bad { color: #b3261e; font-weight: 700; } td.long { white-space: normal; min-width: 320px; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, "DejaVu Sans", sans-serif; }
.tick { fill: var(--soft); } .axis { fill: var(--ink); } .grid { stroke: #e6e9ed; } .unit { stroke: #7d8794;
  stroke-dasharray: 4 3; } .curve { fill: none; stroke-width: 2; } .whisker { stroke-width: 2; }
pre { font: 12.5px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap; margin: 8px 0 0; }
summary { cursor: pointer; font-weight: 600; } dl { display: grid; grid-template-columns: max-content 1fr;
  gap: 2px 16px; margin: 6px 0 0; } dt { color: var(--soft); } dd { margin: 0; }
"""

LONG = 60
"""Characters of a cell above which its words are set in several lines."""

FRONTIER = "Latency-throughput frontier"

CAPTIONS = {
    "Speed-up": "Time per output token of the baseline over the system's, the same requests; 95 % intervals.",
    FRONTIER: "Up and to the right is better. A point is a level; its number says how many "
    "requests ran at once or, as 2/s, arrived a second.",
    "Acceptance by slot": "How often a draft is kept when all before it were; 95 % intervals. Slots that "
    "hardly any cycle reached are left out.",
    "Acceptance lengths": "How many tokens a cycle gives. More than one is what drafting gains.",
}


def caption(outcome: Outcome, name: str) -> str:
    """What a chart shows; all but the frontier are of the first level alone."""
    levels = outcome.options["levels"]
    one = f" With {levels[0]}." if name != FRONTIER and len(levels) > 1 else ""
    return escape(CAPTIONS[name] + one)


def check_page(path: Path) -> None:
    """Whether a report may be written there; to be asked before anything is measured.

    Raises:
        DFlashError: it may not.
    """
    fresh = not path.exists()
    try:
        path.open("a").close()
        if fresh:
            path.unlink()  # an interruption leaves no empty report
    except OSError as error:
        raise DFlashError(f"{path} cannot be written: {error.strerror}. Give another --html.") from None


def write_page(path: Path, outcome: Outcome) -> None:
    """Write the report.

    Raises:
        DFlashError: the file cannot be written.
    """
    try:
        path.write_text(page(outcome), encoding="utf-8")
    except OSError as error:
        raise DFlashError(
            f"{path} cannot be written: {error.strerror}. --resume with another --html writes it, and "
            "measures nothing again."
        ) from None


def page(outcome: Outcome) -> str:
    """The report as text."""
    systems = list(outcome.systems)
    charts = {
        "Speed-up": speedups(outcome.rows, systems, outcome.baseline),
        FRONTIER: frontier(outcome.rows, systems),
        "Acceptance by slot": acceptance_by_slot(outcome.rows, systems),
        "Acceptance lengths": acceptance_lengths(outcome.rows, systems),
    }
    cards = "".join(
        f'<section class="card"><h2>{name}</h2><p>{caption(outcome, name)}</p>{chart}</section>'
        for name, chart in charts.items()
        if chart is not None
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>dflash-core bench</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>{_header(outcome)}{_legend(systems, outcome.baseline)}"
        f'<div class="cards" style="margin-bottom:18px">{cards}</div>'
        f"{''.join(_table(table) for table in tables(outcome))}{_details(outcome)}</body></html>\n"
    )


def _header(outcome: Outcome) -> str:
    options, where = outcome.options, outcome.environment
    asked = ", ".join(f"{count} of {group}" for group, count in options["requests"].items())
    machine = [str(where.get("processor")), f"{where.get('cores')} cores", *where.get("gpus", [])]
    told = f"up to {options['max_new_tokens']} tokens, temperature {options['temperature']:g}"
    words = f"{asked}; {told}, seed {options['seed']}. {', '.join(machine)}. {where.get('measured')}."
    lines = [words, *(_resumed(where, later) for later in outcome.resumed)]
    return f"<header><h1>dflash-core bench</h1>{''.join(f'<p>{escape(text)}</p>' for text in lines)}</header>"


def _resumed(first: Mapping[str, Any], later: Mapping[str, Any]) -> str:
    """When a run went on, and where if not at the same place."""
    other = "; ".join(changes(first, later)) or "the same machine and versions"
    return f"Resumed {later.get('measured')}: {other}."


def _legend(systems: Sequence[str], baseline: str | None) -> str:
    items = "".join(
        f'<span><i style="background:{colour(index)}"></i>{escape(system)}'
        f"{' (baseline)' if system == baseline else ''}</span>"
        for index, system in enumerate(systems)
    )
    return f'<div class="legend">{items}</div>'


def _table(table: Table) -> str:
    numeric = [_is_numeric([row[index] for row in table.rows]) for index in range(len(table.columns))]
    head = "".join(
        f"<th{_number(is_number)}>{escape(name)}</th>"
        for name, is_number in zip(table.columns, numeric, strict=True)
    )
    body = ""
    level = table.columns.index("level")
    for above, row in zip([None, *table.rows], table.rows, strict=False):
        kinds = ["mean"] if OVERALL in row else []
        kinds += ["level"] if above is not None and above[level] != row[level] else []
        cells = "".join(_cell(cell, is_number) for cell, is_number in zip(row, numeric, strict=True))
        body += f'<tr class="{" ".join(kinds)}">{cells}</tr>'
    return (
        f'<section class="card"><h2>{escape(table.title)}</h2>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></section>"
    )


def _details(outcome: Outcome) -> str:
    parts: list[tuple[str, Mapping[str, Any]]] = [
        ("Environment", outcome.environment),
        *(("Environment, resumed", later) for later in outcome.resumed),
        ("Options", outcome.options),
        ("Systems", outcome.systems),
    ]
    return "".join(
        f'<section class="card"><details><summary>{name}</summary>'
        f"<pre>{escape(json.dumps(data, indent=2, default=str))}</pre></details></section>"
        for name, data in parts
    )


def _cell(cell: object, is_number: bool) -> str:
    kind = ' class="bad"' if cell == "NO" else _number(is_number)
    if isinstance(cell, str) and len(cell) > LONG:
        kind = ' class="long"'
    return f"<td{kind}>{escape('–' if cell is None else str(cell))}</td>"


def _number(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def _is_numeric(cells: Sequence[object]) -> bool:
    """Whether a column holds numbers alone, percentages among them, so that they are set to the right."""
    given = [cell for cell in cells if cell is not None]
    words = [cell.rstrip("%").replace(".", "", 1) for cell in given if isinstance(cell, str)]
    return bool(given) and (len(words) < len(given) or all(word.isdigit() for word in words))
