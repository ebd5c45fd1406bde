"""`dflash-core validate`: what is wrong with a draft checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dflash_core.cli import output


def validate_command(
    path: Annotated[Path, typer.Argument(help="Folder of a draft checkpoint.")],
    target: Annotated[
        Path | None, typer.Option("--target", help="Folder of the target; its config.json is compared.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read a draft checkpoint to the last byte and say what is wrong; exits with 1 when there are errors.

    Example: `dflash-core validate my-draft --target SmolLM2-135M-Instruct`
    """
    from dflash_core.checkpoint.validate import validate_checkpoint

    findings = validate_checkpoint(path, target)
    errors = [finding for finding in findings if finding.level == "error"]
    if as_json:
        output.print_json(
            {"path": str(path), "ok": not errors, "findings": [asdict(finding) for finding in findings]}
        )
    elif findings:
        rows = [(finding.level, finding.where, finding.message) for finding in findings]
        output.print_table(("level", "where", "finding"), rows)
    else:
        print(f"{path}: nothing wrong.")
    if errors:
        raise typer.Exit(1)
