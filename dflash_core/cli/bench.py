"""`dflash-core bench`: systems side by side on the same requests, with how sure every figure is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_core.cli import output
from dflash_core.errors import DFlashError

if TYPE_CHECKING:
    from dflash_core.bench.options import BenchOptions

FAILED_CLAIM = 1
"""Exit code when everything was measured and a claim does not hold."""

SETTINGS = (
    *("target", "draft", "engine", "dtype", "fast", "draft_vocab"),
    *("max_new_tokens", "temperature", "top_k", "top_p", "seed"),
)


def bench_command(
    context: typer.Context,
    system: Annotated[
        list[str] | None,
        typer.Option("--system", "-s", help="KIND or KIND:name=value,...; repeatable."),
    ] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="A built-in set; repeatable.")] = None,
    requests: Annotated[
        list[Path] | None, typer.Option("--requests", help="A file of JSON lines; repeatable.")
    ] = None,
    prompts: Annotated[
        int | None, typer.Option("--prompts", min=1, help="Requests of each set (default: all).")
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="How often each is asked.")] = 1,
    concurrency: Annotated[
        list[int] | None, typer.Option("--concurrency", "-c", help="Requests at once; repeatable.")
    ] = None,
    rate: Annotated[
        list[float] | None, typer.Option("--rate", help="Requests arriving a second; repeatable.")
    ] = None,
    latency_target: Annotated[
        list[str] | None, typer.Option("--latency-target", help='E.g. "ttft <= 0.5"; repeatable.')
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="Label of the system that ratios are taken to.")
    ] = None,
    warm_up: Annotated[int, typer.Option("--warm-up", min=0, help="Requests before each level.")] = 1,
    round_size: Annotated[
        int | None, typer.Option("--round", min=1, help="Requests of a system before the next one's turn.")
    ] = None,
    price_per_hour: Annotated[float | None, typer.Option(min=0, help="Of the machine.")] = None,
    claim: Annotated[
        list[str] | None, typer.Option("--assert", help='E.g. "speedup >= 1.5 at p05"; repeatable.')
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--against", help="JSON of an earlier run: do both agree?")
    ] = None,
    run_file: Annotated[Path, typer.Option("--run-file", help="Where finished turns are kept.")] = Path(
        "bench.jsonl"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run file.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a report with charts here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    demo_pair: Annotated[bool, typer.Option("--demo-pair", help="Use the demo's target and draft.")] = False,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file (default: dflash.toml).")] = None,
    target: Annotated[str | None, typer.Option(help="Folder of the target.")] = None,
    draft: Annotated[str | None, typer.Option(help="Folder of the draft.")] = None,
    engine: Annotated[str | None, typer.Option(help="What runs the target.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    fast: Annotated[str | None, typer.Option(help="Fast path for few rows: auto or off.")] = None,
    draft_vocab: Annotated[
        str | None, typer.Option(help="Tokens the draft chooses from: a number, or a JSON file.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", "-n", help="Most tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(help="0 is off.")] = None,
    top_p: Annotated[float | None, typer.Option(help="1 is off.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of order, arrivals, sampling and intervals.")] = None,
) -> None:
    """Measure systems side by side on the same requests: latency, throughput, acceptance, cost, energy.

    Kinds of systems: `plain` (the baseline unless --baseline names another), `dflash` (the draft; options are
    settings such as `verify_length=block`), `prompt-lookup` (transformers' own; `tokens=10`), `dflash-0.1.0`
    (the loop of that package) and `endpoint` (`url=http://host:port`, `model=`, `key_env=`). `label=NAME`
    names any of them.

    **Examples**

    - `dflash-core bench --demo-pair --prompts 10 -n 96 --html report.html`
    - `dflash-core bench --demo-pair -s plain -s dflash -s dflash:verify_length=block,label=block`
    - `dflash-core bench --demo-pair -s plain -s prompt-lookup:tokens=5 -c 1 -c 4 --price-per-hour 0.4`
    - `dflash-core bench --set mtbench --rate 2 --latency-target "ttft <= 500ms" --baseline old
      -s endpoint:url=http://localhost:30001,label=old -s endpoint:url=http://localhost:30000,label=new`
    - `dflash-core bench --demo-pair --assert "speedup >= 1.5 at p05" --assert "identical == 100%"`
      exits with 1 if a claim does not hold
    - `dflash-core bench --demo-pair --resume` goes on after an interruption

    Systems take turns request by request, so that a machine that drifts favours none. Intervals are of a
    bootstrap over requests and hold 95 %. Speed-up is of the time per token after the first delivery. Memory
    is that of this process; that of an endpoint is not reported, its server has processes of its own. Exit
    codes: 0, 1 for a claim that does not hold, 2 for what you can mend, such as a system that answered
    nothing, 130 for an interruption.
    """
    from dflash_core.bench.options import BenchOptions
    from dflash_core.cli.pair import resolve_flags

    flags = {name: context.params[name] for name in SETTINGS}
    if demo_pair:
        # What --demo-pair stands for, and what it must not meet, is decided where all commands have it.
        chosen = resolve_flags(flags, config, demo_pair).settings
        flags |= {name: getattr(chosen, name) for name in ("target", "draft", "draft_vocab")}
    options = BenchOptions.parse(
        flags=flags,
        config=config,
        systems=system or ["plain", "dflash"],
        sets=sets or [],
        files=requests or [],
        prompts=prompts,
        repeats=repeats,
        concurrency=concurrency or [],
        rates=rate or [],
        targets=latency_target or [],
        baseline=baseline,
        warm_up=warm_up,
        round_size=round_size,
        price=price_per_hour,
        claims=claim or [],
        against=against,
    )
    failed = measure(options, run_file, resume, html, as_json)
    if failed:
        raise typer.Exit(FAILED_CLAIM)


def measure(options: BenchOptions, run_file: Path, resume: bool, html: Path | None, as_json: bool) -> bool:
    """Run, print and write; whether a claim does not hold.

    Raises:
        DFlashError: it cannot be run or written, or a system answered nothing, which no claim has caught.
    """
    from dflash_core.bench.benchmark import Benchmark, failures, with_errors
    from dflash_core.bench.report.page import check_page, write_page
    from dflash_core.bench.runfile import check_path
    from dflash_core.cli.bench_table import print_outcome

    check_path(run_file, resume)
    if html is not None:
        check_page(html)
    bench = Benchmark(options, note=output.note)
    keep = bench.open_run(run_file, resume)
    with output.progress() as bar:
        task = bar.add_task("measuring", total=bench.turns, completed=len(keep.done))

        def show(turn: Any, result: Any) -> None:
            if result is None:
                bar.update(task, description=f"{turn.level.label}: {turn.system}")
            else:
                bar.advance(task)

        try:
            bench.run(keep, show)
        except KeyboardInterrupt:
            output.note(
                f"{len(keep.done)} of {bench.turns} turns are in {run_file}; --resume goes on with them."
            )
            raise
    outcome = bench.outcome(keep)
    try:
        print_outcome(outcome, as_json)
    except OSError:
        output.note(
            f"All turns are in {run_file}; --resume prints their figures, and measures nothing again."
        )
        raise
    finally:
        if html is not None:
            write_page(html, outcome)
    broken = with_errors(outcome)
    for row in broken:
        [(reason, count), *_] = row.errors.items()
        output.note(
            f"Of {row.system}, {row.level}, {row.failed} of {row.requests} requests failed; "
            f"{count} so: {reason}"
        )
    failed = failures(outcome)
    for check in failed:
        value = check.reason if check.value is None else f"{check.value:.4g}"
        output.note(f"Does not hold: {check.claim.text} ({check.system}, {check.level}: {value})")
    silent = [f"{row.system!r} ({row.level})" for row in broken if row.failed == row.requests]
    if silent and not failed:
        raise DFlashError(
            f"Nothing was answered by {', '.join(silent)}. "
            "Mend that, and measure again with another --run-file."
        )
    return bool(failed)
