"""`dflash-core confidence`: a draft that also says how sure it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_core.cli import output

if TYPE_CHECKING:
    from dflash_core.checkpoint.export import Export
    from dflash_core.cli.pair import Pair
    from dflash_core.spec import ConfidenceFeature
    from dflash_core.training.confidence import Report
    from dflash_core.training.confidence.collect import CollectOptions
    from dflash_core.training.confidence.observations import Observations
    from dflash_core.training.data.prompts import Prompt

PLOT, REPORT = "reliability.svg", "confidence.json"
NAMES = ("slots_before", "slots_after", "survival_before", "survival_after")
CAPTIONS = {
    "slots_before": "each slot, as fitted",
    "slots_after": "each slot, temperatures applied",
    "survival_before": "up to a slot, as fitted",
    "survival_after": "up to a slot, temperatures applied",
}


def confidence_command(
    prompts: Annotated[
        list[Path],
        typer.Option("--prompts", "-p", help="Prompts, as `dflash-core data` takes them; repeatable."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write the draft with its head to.")],
    target: Annotated[str | None, typer.Option(help="Folder of the target.")] = None,
    draft: Annotated[str | None, typer.Option(help="Folder of the draft.")] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Prompts used at most, drawn by the seed; at least 10 are needed.")
    ] = 400,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", "-n", help="Where an answer is cut.")
    ] = None,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Longer prompts are left out.")] = 1024,
    temperature: Annotated[
        float | None, typer.Option(help="That the target is sampled at; 0 is greedy.")
    ] = None,
    max_batch: Annotated[int | None, typer.Option(min=1, help="Prompts decoded together.")] = None,
    width: Annotated[
        int | None, typer.Option(min=1, help="Of the MLP; by default below 0.1 % of all parameters.")
    ] = None,
    features: Annotated[
        str, typer.Option(help="What it takes beside the hidden state: slot, log_prob, both or none.")
    ] = "slot,log_prob",
    epochs: Annotated[int, typer.Option(min=1, help="At most.")] = 60,
    seed: Annotated[int | None, typer.Option(help="Of prompts, weights and order.")] = None,
    draft_vocab: Annotated[
        str | None, typer.Option(help="Tokens the draft chooses from: a number, or a JSON file.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="What runs the target.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16, of both models.")] = None,
    fast: Annotated[str | None, typer.Option(help="Fast path for few rows: auto or off.")] = None,
    demo_pair: Annotated[bool, typer.Option("--demo-pair", help="Use the demo's target and draft.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a checkpoint that is there.")
    ] = False,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file (default: dflash.toml).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Give a draft a confidence head, fitted to what its target really accepts, and calibrate it.

    The pair decodes the prompts; a two-layer MLP learns, from the hidden state of each drafted slot, whether
    its token is kept once all before it were; a temperature a slot is then fitted to the products of these
    probabilities, from left to right. Figures are of prompts that neither step has seen. Beside the
    checkpoint lie `reliability.svg`, `confidence.json` and the draft's model card, with the head's errors.

    Example: `dflash-core confidence --demo-pair --prompts prompts.jsonl --out draft-with-head`
    """
    from dflash_core.checkpoint.export import check_exportable, export, fitted_on
    from dflash_core.checkpoint.load import load_checkpoint
    from dflash_core.cli.pair import load_pair, resolve_flags
    from dflash_core.training.confidence import FitOptions, train_confidence
    from dflash_core.training.confidence.collect import CollectOptions
    from dflash_core.training.confidence.fit import width_within
    from dflash_core.training.data.gather import choose, gather_prompts
    from dflash_core.training.data.screen import screen

    kinds = feature_names(features)
    flags: dict[str, Any] = {"target": target, "draft": draft, "engine": engine, "dtype": dtype, "fast": fast}
    flags |= {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    flags |= {"draft_vocab": draft_vocab, "verification_batch_size": max_batch}
    resolved = resolve_flags(flags, config, demo_pair)
    settings = resolved.settings
    source = load_checkpoint(resolved.require("draft"))
    check_exportable(source, out, overwrite)
    screened = screen(gather_prompts(prompts, seed=settings.seed).prompts)
    for name, reason in screened.not_compared.items():
        output.note(f"Warning: the prompts were not compared with {name}. {reason}")
    pair = load_pair(resolved, needs_draft=True, calibrate=False)
    chosen = choose(screened.prompts, limit, settings.seed)
    collect = CollectOptions(
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        seed=settings.seed,
        max_batch=settings.verification_batch_size,
    )
    observed = _observe(pair, chosen, max_prompt_tokens, collect)
    parameters = parameter_count(pair)
    options = FitOptions(
        width=width or width_within(source.spec, kinds, parameters),
        features=kinds,
        epochs=epochs,
        seed=settings.seed,
    )
    head, report = train_confidence(observed, options, stored_dtype(pair))
    done = export(
        source,
        out,
        head=fitted_on(head, source),
        target=pair.target.info,
        overwrite=overwrite,
        about_head=card_section(report),
    )
    share = done.head_parameters / parameters
    about = {**report.to_dict(), "head_parameters": done.head_parameters, "share": share}
    about |= {"temperatures": head.spec.temperatures, "width": options.width, "features": list(kinds)}
    about |= {"benchmark_overlaps": dict(screened.overlaps), "seed": settings.seed}
    _write(done.path, report, about)
    if as_json:
        output.print_json({"path": str(done.path), **about})
    else:
        _print(done, report, share, head.spec.temperatures)


def card_section(report: Report) -> str:
    """What the model card says of the head."""
    found = [(CAPTIONS[name], one) for name in NAMES if (one := getattr(report, name))]
    return "\n".join(
        [
            f"Fitted by `dflash-core confidence`, from {report.blocks:,} blocks of {report.prompts:,} "
            "prompts. Expected calibration error on those of them that were held out:",
            "",
            "| probability | events | error |",
            "|---|---|---|",
            *[f"| {caption} | {one.count:,} | {one.ece:.4f} |" for caption, one in found],
        ]
    )


def feature_names(text: str) -> tuple[ConfidenceFeature, ...]:
    """Features from a list with commas; "none" is none.

    Raises:
        SettingsError: one is unknown, or named twice.
    """
    from dflash_core.checkpoint.confidence import OURS
    from dflash_core.errors import SettingsError

    given = [] if text.strip() in ("", "none") else [name.strip() for name in text.split(",")]
    if len(set(given)) < len(given) or not set(given) <= set(OURS):
        raise SettingsError(f"--features is {text!r}; it must be none, or some of {', '.join(OURS)}.")
    return tuple(feature for feature in OURS if feature in given)


def parameter_count(pair: Pair) -> int:
    """Of target and draft together; of a target that shows no model, its vocabulary alone."""
    from torch import nn

    model = getattr(pair.target, "model", None)
    info = pair.target.info
    own = info.vocab_size * info.hidden_size
    if isinstance(model, nn.Module):
        own = sum(parameter.numel() for parameter in model.parameters())
    network = getattr(pair.draft, "network", None)
    return own + (sum(p.numel() for p in network.parameters()) if isinstance(network, nn.Module) else 0)


def stored_dtype(pair: Pair) -> Any:
    """The dtype that the draft's file has, and so its head."""
    import torch

    spec = getattr(pair.draft, "spec", None)
    return getattr(torch, spec.dtype) if spec is not None else torch.float32


def _observe(pair: Pair, prompts: Sequence[Prompt], longest: int, options: CollectOptions) -> Observations:
    from dflash_core.drafter.block import BlockDrafter
    from dflash_core.errors import RequestError, UnsupportedError
    from dflash_core.training.confidence import observe
    from dflash_core.training.data.answering import AnswerOptions
    from dflash_core.training.data.encoding import PromptEncoder

    if not isinstance(pair.draft, BlockDrafter):
        raise UnsupportedError("A confidence head needs a draft of the kind 'block' (--drafter).")
    encode = getattr(pair.target, "encode_chat", None)
    if encode is None:
        raise RequestError(f"{pair.target.info.name} has no tokenizer, so it cannot be asked in words.")
    encoder = PromptEncoder(encode, AnswerOptions())
    encoded = [encoder(prompt) for prompt in prompts]
    fitting = [ids for ids in encoded if ids is not None and len(ids) <= longest]
    with output.progress() as bar:
        task = bar.add_task("decoding", total=len(fitting))

        def report(done: int, blocks: int) -> None:
            bar.update(task, completed=done, description=f"decoding, {blocks} blocks")

        return observe(pair.target, pair.draft, fitting, options, report)


def _write(folder: Path, report: Report, about: dict[str, Any]) -> None:
    from dflash_core.errors import DFlashError
    from dflash_core.training.confidence.plot import reliability_svg

    diagrams = {CAPTIONS[name]: getattr(report, name) for name in NAMES}
    try:
        (folder / PLOT).write_text(
            reliability_svg("Confidence against acceptance, on prompts held out", diagrams), encoding="utf-8"
        )
        (folder / REPORT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise DFlashError(
            f"{folder} is complete, but its report cannot be written: {error.strerror}."
        ) from None


def _print(done: Export, report: Report, share: float, temperatures: tuple[float, ...]) -> None:
    rows = [
        (CAPTIONS[name], one.count, one.ece, one.nll, one.brier)
        for name in NAMES
        if (one := getattr(report, name))
    ]
    output.print_table(("probability", "events", "ECE", "NLL", "Brier"), rows, title="On prompts held out")
    slots = [
        (f"{slot}", rate, one)
        for slot, (rate, one) in enumerate(zip(report.slot_acceptance, temperatures, strict=True), 1)
    ]
    output.print_table(("slot", "accepted", "temperature"), slots)
    print(
        f"{done.path}: a head of {done.head_parameters} parameters ({share:.3%} of all), from "
        f"{report.blocks} blocks of {report.prompts} prompts, acceptance length "
        f"{report.acceptance_length:.2f}; see {PLOT}"
    )
