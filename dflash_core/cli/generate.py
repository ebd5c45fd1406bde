"""`dflash-core generate`: continue prompts, and show what the draft gained."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_core.cli import output

if TYPE_CHECKING:
    from dflash_core.cli.pair import Pair
    from dflash_core.comparison import Comparison
    from dflash_core.generation import GenerateResult

NOT_SETTINGS = ("prompt", "raw", "clean", "demo_pair", "compare", "as_json", "stop", "config")


def generate_command(
    context: typer.Context,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="A prompt; repeatable; - reads standard input.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Leave the chat template out.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Remove characters that do not show.")] = False,
    demo_pair: Annotated[bool, typer.Option("--demo-pair", help="Use the demo's target and draft.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Decode plainly as well, and compare.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End at this text; repeatable.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file (default: dflash.toml).")] = None,
    target: Annotated[str | None, typer.Option(help="Folder of the target.")] = None,
    draft: Annotated[str | None, typer.Option(help="Folder of the draft.")] = None,
    engine: Annotated[str | None, typer.Option(help="What runs the target.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    fast: Annotated[str | None, typer.Option(help="Fast path for few rows: auto or off.")] = None,
    block_diffusion: Annotated[bool | None, typer.Option(help="Draft, or decode plainly.")] = None,
    drafter: Annotated[str | None, typer.Option(help="Kind of drafter.")] = None,
    proposal: Annotated[str | None, typer.Option(help="auto, argmax or sample.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Slots of a block, the anchor included.")] = None,
    verify_length: Annotated[str | None, typer.Option(help="auto, block or a number.")] = None,
    tree_budget: Annotated[
        str | None,
        typer.Option(help="Nodes of a token tree: auto (the schedule decides), none (a chain) or a number."),
    ] = None,
    draft_window: Annotated[int | None, typer.Option(help="Newest positions the draft sees.")] = None,
    draft_vocab: Annotated[
        str | None, typer.Option(help="Tokens the draft chooses from: a number, or a JSON file.")
    ] = None,
    schedule: Annotated[str | None, typer.Option(help="What plans each cycle: auto or fixed.")] = None,
    verifier: Annotated[str | None, typer.Option(help="What decides which drafts stay.")] = None,
    rollback: Annotated[str | None, typer.Option(help="How caches drop what was rejected.")] = None,
    verification_batch_size: Annotated[int | None, typer.Option(help="Requests decoded together.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", "-n", help="Most tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(help="0 is off.")] = None,
    top_p: Annotated[float | None, typer.Option(help="1 is off.")] = None,
    min_p: Annotated[float | None, typer.Option(help="0 is off.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the first prompt; the next has the next.")] = None,
) -> None:
    """Continue prompts with a target and a draft. The output is the target's own, only faster.

    **Examples**

    - `dflash-core generate --demo-pair --prompt "Why is the sky blue?"`
    - `dflash-core generate --demo-pair --compare` decodes a few prompts plainly as well, and prints a table
    - `dflash-core generate --target Qwen3-8B --draft Qwen3-8B-DFlash-b16 -p "Hi" --temperature 0.7 --seed 1`
    - `echo "Once upon a time" | dflash-core generate --demo-pair --raw -p - --json`

    Options that are settings can also stand in `dflash.toml` or in `DFLASH_*` variables: see
    `dflash-core settings`, which shows their defaults. Rates are tokens a second outside the prefill.
    """
    from dflash_core.cli.pair import load_pair, resolve_flags
    from dflash_core.cli.prompts import read_prompts

    flags = {name: value for name, value in context.params.items() if name not in NOT_SETTINGS}
    resolved = resolve_flags(flags, config, demo_pair)
    texts = read_prompts(prompt, demo_pair, clean)
    pair = load_pair(resolved, needs_draft=compare)
    prompts = [pair.encode(text, raw) for text in texts]
    options = {**pair.options(), "stop": stop}
    if compare:
        comparisons = compare_prompts(pair, prompts, options)
        if as_json:
            output.print_json(comparison_fields(comparisons))
        else:
            print_comparison(texts, comparisons)
        return
    schedule_name = pair.settings.schedule
    if not as_json and len(prompts) == 1:
        stream(pair, prompts[0], {**options, "schedule": schedule_name})
        return
    from dflash_core.generation import generate

    result = generate(pair.target, pair.draft, prompts, schedule=schedule_name, **options)
    if as_json:
        output.print_json(fields(result))
        return
    for text, answer in zip(texts, result.text or [str(ids) for ids in result.tokens], strict=True):
        print(f"> {text}\n{answer}\n")


def stream(pair: Pair, prompt: list[int], options: dict[str, Any]) -> None:
    """Print an answer while it is made, and what the draft gained on standard error."""
    from dflash_core.decoder import Delta
    from dflash_core.generation import generate, stop_sequences
    from dflash_core.streaming import TextStream

    text = TextStream(pair.detokenize, stop_sequences(options["stop"]))

    def show(delta: Delta) -> None:
        sys.stdout.write(text.feed(delta.tokens, last=delta.finish_reason is not None))
        sys.stdout.flush()

    result = generate(pair.target, pair.draft, [prompt], on_tokens=show, **options)
    print()
    output.note(
        f"{result.stats.new_tokens} tokens, {result.stats.tokens_per_second:.1f} a second, "
        f"acceptance length {result.stats.acceptance_length:.2f}"
    )


def compare_prompts(pair: Pair, prompts: Sequence[list[int]], options: dict[str, Any]) -> list[Comparison]:
    """Every prompt both ways, one after another; which way goes first alternates."""
    from dflash_core.comparison import compare, warm_up
    from dflash_core.generation import plan_with

    if pair.draft is None:
        return []
    schedule = plan_with(pair.settings.schedule, pair.target, pair.draft)
    warm_up(pair.target, pair.draft, prompts[0], schedule=schedule, **options)
    comparisons = []
    with output.progress() as bar:
        task = bar.add_task("comparing", total=len(prompts))
        for index, prompt in enumerate(prompts):
            chosen = {**options, "seed": options["seed"] + index}
            comparisons.append(
                compare(
                    pair.target,
                    pair.draft,
                    prompt,
                    schedule=schedule,
                    plain_first=index % 2 == 0,
                    **chosen,
                )
            )
            bar.advance(task)
    return comparisons


def fields(result: GenerateResult) -> dict[str, Any]:
    """What `--json` prints. With a single prompt each field is its value, with several a list of them."""
    lengths = result.stats.acceptance_lengths
    single = len(result.tokens) == 1
    texts = result.text
    return {
        "text": texts[0] if texts and single else texts,
        "tokens": result.tokens[0] if single else result.tokens,
        "finish_reason": result.finish_reasons[0] if single else result.finish_reasons,
        "acceptance_length": result.stats.acceptance_length,
        "acceptance_lengths": lengths[0] if single else lengths,
        "tokens_per_second": result.stats.tokens_per_second,
        "stats": result.stats.to_dict(),
    }


def comparison_fields(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """What `--compare --json` prints: as `fields`, and the same for plain decoding."""
    rows = [
        {
            **fields(one.drafted),
            "plain_tokens_per_second": one.plain_tokens_per_second,
            "speedup": one.speedup,
            "identical": one.identical,
        }
        for one in comparisons
    ]
    if len(rows) == 1:
        return rows[0]
    merged: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    merged["identical"] = all(merged["identical"])
    return merged


def print_comparison(texts: Sequence[str], comparisons: Sequence[Comparison]) -> None:
    """A row a prompt, and their means."""
    from statistics import mean

    rows: list[tuple[object, ...]] = [
        (
            shortened(text),
            one.drafted.stats.new_tokens,
            one.plain_tokens_per_second,
            one.tokens_per_second,
            one.speedup,
            one.drafted.stats.acceptance_length,
            one.identical,
        )
        for text, one in zip(texts, comparisons, strict=True)
    ]
    if len(rows) > 1:
        numbers = [mean(float(str(row[i])) for row in rows) for i in range(2, 6)]
        total = sum(one.drafted.stats.new_tokens for one in comparisons)
        rows.append(("all (mean)", total, *numbers, all(one.identical for one in comparisons)))
    columns = ("prompt", "tokens", "plain tok/s", "tok/s", "speed-up", "acceptance length", "identical")
    output.print_table(columns, rows)


def shortened(text: str, width: int = 48) -> str:
    """One line of a prompt."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."
