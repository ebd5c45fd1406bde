"""`dflash-core convert`: a draft checkpoint in another layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dflash_core.cli import output


def convert_command(
    source: Annotated[Path, typer.Argument(help="Folder of a draft checkpoint, of any known layout.")],
    destination: Annotated[Path, typer.Argument(help="Folder to write.")],
    to: Annotated[
        str, typer.Option("--to", help="Layout to write: zlab, specforge, speculators, or a plugin's.")
    ],
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="float32, bfloat16 or float16; the source's when left out.")
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option("--target", help="Folder of the target: gives or checks embedding and head."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a checkpoint that is there.")
    ] = False,
) -> None:
    """Write a draft checkpoint in another layout. The folder appears complete or not at all.

    Example: `dflash-core convert draft draft-speculators --to speculators --target SmolLM2-135M-Instruct`
    """
    from dflash_core.checkpoint.convert import convert

    done = convert(source, destination, to=to, dtype=dtype, target=target, overwrite=overwrite)
    for note in done.notes:
        output.note(f"Note: {note}.")
    print(f"{done.path} ({done.source_dialect} to {done.dialect}, {done.dtype})")
