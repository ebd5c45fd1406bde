"""`dflash-core plugins`: what is loaded, from where, and what failed and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from dflash_core.cli import output
from dflash_core.discovery import KINDS, Catalogue, Failure, Kind, Source
from dflash_core.plugins import catalogue


def plugins_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Import every provider too, and exit with 1 if anything failed.")
    ] = False,
) -> None:
    """List the plugins: where each comes from, what it provides, what failed and why."""
    found = catalogue()
    failures = [*found.failures, *(import_all(found) if check else ())]
    if as_json:
        plugins = [asdict(plugin) for plugin in found.plugins]
        output.print_json({"plugins": plugins, "failures": [asdict(failure) for failure in failures]})
    else:
        _show(found, failures)
    if check and failures:
        raise typer.Exit(1)


def import_all(found: Catalogue) -> Iterator[Failure]:
    """Import each provider; yields those that cannot be used."""
    for kind in KINDS:
        for providers in found.providers[kind].values():
            yield from filter(None, (provider.failure() for provider in providers))


def _show(found: Catalogue, failures: Sequence[Failure]) -> None:
    plugins = [(*_origin(one.source), one.location, _names(one.provides)) for one in found.plugins]
    output.print_table(("plugin", "distribution", "from", "provides"), plugins)
    if failures:
        rows = [(*_origin(failure.source), failure.what, failure.cause) for failure in failures]
        output.print_table(("plugin", "distribution", "failed", "cause"), rows, title="Failures")


def _origin(source: Source) -> tuple[str, str]:
    return source.plugin, f"{source.distribution} {source.version}"


def _names(provides: Mapping[Kind, Sequence[str]]) -> str:
    return "\n".join(f"{kind}: {', '.join(names)}" for kind, names in provides.items())
