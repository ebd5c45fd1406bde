"""`dflash-core settings`: each value that holds, and where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic.fields import FieldInfo

from dflash_core.cli import output


def settings_command(
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file (default: dflash.toml here, if there).")
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", help="Draft checkpoint; what it says counts above the defaults.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show each setting's value, where it came from, and what it means."""
    from dflash_core.settings import Settings, resolve

    resolved = resolve({"draft": draft}, config=config)
    if resolved.settings.draft is not None:
        from dflash_core.checkpoint.load import read_spec

        checkpoint = {"block_size": read_spec(resolved.settings.draft).block_size}
        resolved = resolve({"draft": draft}, config=config, checkpoint=checkpoint)
    values = resolved.settings.model_dump(mode="json")
    if as_json:
        output.print_json({name: {"value": values[name], "from": resolved.origins[name]} for name in values})
        return
    rows = [
        (name, _shown(value), resolved.origins[name], meaning(Settings.model_fields[name]))
        for name, value in values.items()
    ]
    output.print_table(("setting", "value", "from", "meaning"), rows)


def _shown(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def meaning(field: FieldInfo) -> str:
    """What a setting is and which values it may have."""
    extra = field.json_schema_extra
    allowed = extra["allowed"] if isinstance(extra, dict) else ""
    return f"{field.description}: {allowed}"
