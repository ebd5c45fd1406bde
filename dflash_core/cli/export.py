"""`dflash-core export`: a draft with protocol metadata and a confidence head, ready to be handed on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_core.cli import output


def export_command(
    source: Annotated[Path, typer.Argument(help="Folder of a draft checkpoint that borrows its vocabulary.")],
    destination: Annotated[Path, typer.Argument(help="Folder to write, in z-lab's layout.")],
    confidence_head: Annotated[
        Path | None,
        typer.Option(help="Folder with a head: an exported draft, or head.json and head.safetensors."),
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--target", help="Folder of the target; the result is held against it.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="float32, bfloat16 or float16; the source's when left out.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a checkpoint that is there.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Put a confidence head and protocol metadata into a draft checkpoint, and validate the result.

    The config then says `block_diffusion: true` and `padding_side: "left"`, and describes the head, whose
    tensors are named `confidence_head.*`. Programs that do not know the head may refuse its tensors: keep the
    draft that it was made from for those.

    Example: `dflash-core export draft draft-with-head --confidence-head head --target SmolLM2-135M-Instruct`
    """
    from dflash_core.checkpoint.export import LARGEST_SHARE, export, target_parameters

    done = export(source, destination, head=confidence_head, target=target, dtype=dtype, overwrite=overwrite)
    others = done.draft_parameters + (0 if target is None else target_parameters(target))
    share = done.head_parameters / others
    if share > LARGEST_SHARE:
        of = "the draft's" if target is None else "target's and draft's together"
        output.note(
            f"Warning: the confidence head has {share:.2%} of the parameters ({of}); more than "
            f"{LARGEST_SHARE:.1%} is seldom worth its time."
        )
    for finding in done.findings:
        output.note(f"Warning: {finding.where}: {finding.message}")
    if as_json:
        report: dict[str, Any] = {
            "path": str(done.path),
            "confidence_head": None if done.spec.confidence is None else asdict(done.spec.confidence),
            "head_parameters": done.head_parameters,
            "draft_parameters": done.draft_parameters,
            "share": share,
            "findings": [asdict(finding) for finding in done.findings],
        }
        output.print_json(report)
        return
    head = f"a confidence head of {done.head_parameters} parameters" if done.head_parameters else "no head"
    print(f"{done.path} (zlab, {head}, valid)")
