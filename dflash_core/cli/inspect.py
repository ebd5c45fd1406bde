"""`dflash-core inspect`: what a draft checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_core.cli import output

if TYPE_CHECKING:
    from dflash_core.checkpoint.inspect import CheckpointReport
    from dflash_core.spec import DraftSpec, LayerSpec


def inspect_command(
    path: Annotated[Path, typer.Argument(help="Folder of a draft checkpoint.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, tensors included.")] = False,
) -> None:
    """Show what a draft checkpoint holds: layout, architecture, taps, sizes. Reads no weights.

    Example: `dflash-core inspect drafts/SmolLM2-135M-Instruct-DFlash2-b8`
    """
    from dflash_core.checkpoint.inspect import inspect_checkpoint

    report = inspect_checkpoint(path)
    if as_json:
        output.print_json(report.to_dict())
        return
    output.print_table(("draft", report.path), summary(report))
    parts = [
        (part, count, f"{count / report.total_parameters:.1%}") for part, count in report.parameters.items()
    ]
    output.print_table(("part", "parameters", "share"), [*parts, ("all", report.total_parameters, "100.0%")])
    for warning in report.warnings:
        output.note(f"Warning: {warning}")


def summary(report: CheckpointReport) -> Iterator[tuple[str, str]]:
    """Rows of a table about a checkpoint."""
    spec = report.spec
    yield "layout", report.dialect
    yield "method", _method(spec)
    yield "block", f"{spec.block_size} slots, the anchor and {spec.block_size - 1} drafts"
    yield (
        "taps",
        f"{', '.join(map(str, spec.taps))} of {spec.num_target_layers or 'an unknown number of'} blocks",
    )
    yield "mask token", str(spec.mask_token_id)
    yield "layers", f"{spec.num_layers}: {_layers(spec.layers)}"
    yield "width", f"{spec.hidden_size}, MLP {spec.intermediate_size}"
    yield "heads", f"{spec.num_heads} of size {spec.head_dim}, {spec.num_kv_heads} for keys and values"
    yield "vocabulary", _vocabulary(spec)
    yield "RoPE", _rope(spec)
    yield "specials", ", ".join(_specials(spec)) or "none"
    dtypes = ", ".join(f"{count} x {name}" for name, count in report.dtypes.items())
    yield "tensors", f"{dtypes}; {report.bytes / 1e6:.1f} MB"


def _method(spec: DraftSpec) -> str:
    if spec.conv is not None:
        return "DFlash2"
    return "DSpark" if spec.anchor_predicts else "DFlash"


def _layers(layers: tuple[LayerSpec, ...]) -> str:
    kinds = [
        f"{'all of the context' if one.window is None else f'window {one.window}'}, "
        f"{'causal' if one.causal else 'bidirectional'}"
        for one in layers
    ]
    return "; ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))


def _vocabulary(spec: DraftSpec) -> str:
    embedding = "own embedding" if spec.owns_embedding else "the target's embedding"
    rows = f" of {spec.draft_vocab_size} rows" if spec.draft_vocab_size is not None else ""
    head = f"own head{rows}" if spec.owns_head else "the target's head"
    return f"{spec.vocab_size}, {embedding}, {head}"


def _rope(spec: DraftSpec) -> str:
    from dflash_core.checkpoint.pair import describe_rope

    return f"{describe_rope(spec.rope)}; up to {spec.max_position_embeddings} positions"


def _specials(spec: DraftSpec) -> Iterator[str]:
    if spec.conv is not None:
        yield f"convolutions of {spec.conv.kernel_size} taps in groups of {spec.conv.group_size}"
    if spec.selector is not None:
        yield f"selector of rank {spec.selector.rank} over {spec.selector.top_k} candidates"
    if spec.markov is not None:
        yield f"{spec.markov.kind} Markov head of rank {spec.markov.rank}"
    if spec.anchor_predicts:
        yield "the anchor's slot predicts the first draft"
    if spec.confidence is not None:
        extra = "".join(f", {feature}" for feature in spec.confidence.features)
        width = spec.confidence.hidden_size
        kind = "linear confidence head" if width is None else f"confidence head of width {width}"
        yield f"{kind} (hidden state{extra})"
    if spec.protocol is not None:
        yield f"block_diffusion, prompts padded on the {spec.protocol.padding_side}"
    if spec.attention_bias:
        yield "attention biases"
    if spec.attention_sinks:
        yield "attention sinks"
    for name in ("attention_value_scale", "input_embedding_scale", "output_multiplier"):
        if (value := getattr(spec, name)) != 1.0:
            yield f"{name} {value:g}"
    if spec.final_logit_softcapping is not None:
        yield f"final_logit_softcapping {spec.final_logit_softcapping:g}"
