"""`dflash-core data`: prompts in, the target's own answers out, as training data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dflash_core.cli import output

if TYPE_CHECKING:
    from dflash_core.settings import Resolved
    from dflash_core.training.data.answering import AnswerOptions, Progress, Report
    from dflash_core.training.data.endpoint import Endpoint
    from dflash_core.training.data.gather import Gathered
    from dflash_core.training.data.prompts import Prompt
    from dflash_core.training.data.screen import Screened
    from dflash_core.training.data.store import AnswerStore, Contents

REPORT_EVERY = 60.0
"""Seconds between two lines of progress where no bar can be shown."""

MAX_BATCH, CONCURRENCY = 128, 16


def data_command(
    sources: Annotated[
        list[Path], typer.Argument(help="JSON-lines files of prompts or chats, or folders of text or code.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the answers; an old one is gone on with.")
    ],
    target: Annotated[str | None, typer.Option(help="Folder of the target.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Ask this OpenAI-compatible address instead of loading the target.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="What the endpoint calls the target.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the endpoint's key.")
    ] = None,
    max_batch: Annotated[
        int | None, typer.Option(min=1, help="Answers made at a time (128; 16 requests of an endpoint).")
    ] = None,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Longer prompts are left out.")] = 512,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", "-n", help="Where an answer is cut.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of order, excerpts and sampling.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use so many of the prompts only.")] = None,
    keep_out: Annotated[
        list[Path] | None,
        typer.Option(help="Leave out what repeats a prompt of this file, beside the benchmarks; repeatable."),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(help="Variable of the chat template, e.g. enable_thinking=false; repeatable."),
    ] = None,
    excerpt_length: Annotated[int, typer.Option(min=80, help="Characters of an excerpt of a folder.")] = 1200,
    excerpts_per_file: Annotated[int, typer.Option(min=1, help="Excerpts of one file of a folder.")] = 8,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Count malformed entries instead of stopping at the first.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that the endpoint may take.")] = 600.0,
    tries: Annotated[int, typer.Option(min=1, help="Of a request, while the endpoint is busy or away.")] = 6,
    engine: Annotated[str | None, typer.Option(help="What runs the target, or has its tokenizer.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    fast: Annotated[str | None, typer.Option(help="Fast path for few rows: auto or off.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file (default: dflash.toml).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make training data: the target's own answers to your prompts, as token ids in shards.

    Whatever stops it, the same command goes on where it was. Prompts that repeat a question of the benchmark
    sets are left out and counted.

    **Examples**

    - `dflash-core data prompts.jsonl --out data --target Qwen3-8B -n 512`
    - `dflash-core data chats.jsonl my-repository --out data --target Qwen3-8B --endpoint
      http://localhost:8000/v1` asks a server that runs the target; only its tokenizer is read here

    A line of a file is `{"messages": [...]}`, `{"conversations": [...]}` (ShareGPT) or `{"prompt": "..."}`;
    answers at the end are left out. Lists of these in one JSON file will do, too.
    """
    from dflash_core.cli.interrupt import graceful
    from dflash_core.cli.pair import resolve_flags
    from dflash_core.training.data.answering import AnswerOptions
    from dflash_core.training.data.gather import choose, gather_prompts
    from dflash_core.training.data.screen import screen
    from dflash_core.training.data.store import AnswerStore

    flags: dict[str, Any] = {"target": target, "engine": engine, "dtype": dtype, "fast": fast, "seed": seed}
    flags |= {"max_new_tokens": max_new_tokens, "temperature": temperature}
    resolved = resolve_flags(flags, config, demo_pair=False)
    chosen = resolved.settings
    options = AnswerOptions(
        max_prompt_tokens=max_prompt_tokens,
        max_new_tokens=chosen.max_new_tokens,
        temperature=chosen.temperature,
        seed=chosen.seed,
        max_batch=max_batch or (MAX_BATCH if endpoint is None else CONCURRENCY),
        template=template_variables(template or ()),
    )
    where = _endpoint(endpoint, model, api_key_env, timeout, tries)
    store = AnswerStore(out, header(resolved, where, options))
    with store.alone(), graceful("Stopping; what is finished is being written ...") as interrupt:
        gathered = gather_prompts(
            sources,
            lenient=lenient,
            seed=chosen.seed,
            longest_excerpt=excerpt_length,
            per_file=excerpts_per_file,
        )
        screened = screen(gathered.prompts, keep_out or ())
        for name, reason in screened.not_compared.items():
            output.note(f"Warning: the prompts were not compared with {name}. {reason}")
        kept = [prompt.id for prompt in screened.prompts]
        store.note_compared(kept, screened.overlaps, screened.not_compared)
        prompts = screened.prompts if limit is None else choose(screened.prompts, limit, chosen.seed)
        with progress_of(as_json) as report:
            done = _answer(where, resolved, prompts, store, options, report, interrupt)
        contents = store.contents()
    if as_json:
        output.print_json(summary(out, gathered, screened, len(prompts), done, contents))
    else:
        _print(out, gathered, screened, len(prompts), done, contents)
    if interrupt.asked:
        output.note(f"{contents.answers} answers are safe in {out}. The same command goes on from there.")
        raise KeyboardInterrupt


def header(resolved: Resolved, endpoint: Endpoint | None, options: AnswerOptions) -> dict[str, Any]:
    """What decides the answers; it is kept with them, and they are gone on with under the same only."""
    made: dict[str, Any] = {"target": resolved.require("target")}
    made |= {"dtype": resolved.settings.dtype} if endpoint is None else {"model": endpoint.model}
    for name in ("max_prompt_tokens", "max_new_tokens", "temperature", "seed"):
        made[name] = getattr(options, name)
    return made | ({"template": options.template} if options.template else {})


def template_variables(given: Sequence[str]) -> dict[str, object]:
    """`name=value` pairs; values are JSON where they can be read so, else strings.

    Raises:
        SettingsError: something is no such pair.
    """
    import json

    from dflash_core.errors import SettingsError

    variables: dict[str, object] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise SettingsError(f"--template is {pair!r}; it must be name=value, e.g. enable_thinking=false.")
        try:
            variables[name] = json.loads(value)
        except (ValueError, RecursionError):
            variables[name] = value
    return variables


@contextmanager
def progress_of(quiet: bool) -> Iterator[Report]:
    """A bar on a terminal, elsewhere a line a minute on standard error; with `quiet` the bar only."""
    begin = last = time.monotonic()
    with output.progress() as bar:
        task = bar.add_task("answers", total=None)

        def report(progress: Progress) -> None:
            nonlocal last
            now = time.monotonic()
            rate = progress.tokens / max(now - begin, 1e-9)
            bar.update(
                task,
                total=progress.left,
                completed=progress.settled,
                description=f"answers, {rate:.0f} tokens/s",
            )
            if bar.disable and not quiet and now - last >= REPORT_EVERY:
                last = now
                output.note(
                    f"{progress.settled} of {progress.left} prompts, {progress.tokens} tokens, "
                    f"{rate:.0f} tokens/s"
                )

        yield report


def summary(
    out: Path, gathered: Gathered, screened: Screened, used: int, done: Progress, contents: Contents
) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "folder": str(out),
        "prompts": len(gathered.prompts),
        "duplicates": gathered.duplicates,
        "malformed": gathered.malformed,
        "benchmark_overlaps": dict(screened.overlaps),
        "not_compared": dict(screened.not_compared),
        "used": used,
        "new_answers": done.answers,
        "new_tokens": done.tokens,
        "left_out": dict(done.left_out),
        "shards": contents.shards,
        "answers": contents.answers,
        "tokens": contents.tokens,
        "prompt_tokens": contents.prompt_tokens,
        "left_out_in_all": dict(contents.left_out),
        "waiting": done.left - done.settled,
    }


def _print(
    out: Path, gathered: Gathered, screened: Screened, used: int, done: Progress, contents: Contents
) -> None:
    rows: list[tuple[object, ...]] = [("different prompts", len(gathered.prompts))]
    rows += [("duplicates left out", gathered.duplicates)] if gathered.duplicates else []
    rows += [("malformed, left out", gathered.malformed)] if gathered.malformed else []
    rows += [(f"in {name}, left out", count) for name, count in screened.overlaps.items()]
    rows.append(("used", used))
    rows += [(f"left out: {reason}", count) for reason, count in contents.left_out.items()]
    rows += [
        (f"not answered: {reason}", count)
        for reason, count in done.left_out.items()
        if reason not in contents.left_out
    ]
    rows += [("answered in this run", done.answers), ("answers in all", contents.answers)]
    rows += [("tokens of answers", contents.tokens), ("tokens of their prompts", contents.prompt_tokens)]
    if waiting := done.left - done.settled:
        rows.append(("waiting", waiting))
    output.print_table(("training data", str(out)), rows)


def _endpoint(
    url: str | None, model: str | None, key_variable: str | None, timeout: float, tries: int
) -> Endpoint | None:
    from dflash_core.errors import SettingsError
    from dflash_core.training.data.endpoint import Endpoint, endpoint_url, only_model

    if url is None:
        given = [name for name, value in (("--model", model), ("--api-key-env", key_variable)) if value]
        if given:
            raise SettingsError(f"{given[0]} is about an endpoint; give --endpoint too, or leave it out.")
        return None
    key = None if key_variable is None else os.environ.get(key_variable)
    if key_variable is not None and not key:
        raise SettingsError(f"--api-key-env is {key_variable}, but there is no such variable.")
    url = endpoint_url(url)
    return Endpoint(url, model or only_model(url, key, tries), key, timeout, tries)


def _answer(
    endpoint: Endpoint | None,
    resolved: Resolved,
    prompts: Sequence[Prompt],
    store: AnswerStore,
    options: AnswerOptions,
    report: Report,
    stop: Callable[[], bool],
) -> Progress:
    from dflash_core.loading import load_target
    from dflash_core.plugins import provider
    from dflash_core.training.data.answering import Progress, waiting_prompts
    from dflash_core.training.data.answers import answer_prompts
    from dflash_core.training.data.remote import ask_endpoint

    if not waiting_prompts(prompts, store, options.seed):
        return Progress(0, 0, len(prompts))
    settings = resolved.settings
    path = resolved.require("target")
    if endpoint is not None:
        tokenizer = provider("tokenizers", settings.engine)(path, cache_dir=settings.cache_dir)
        return ask_endpoint(endpoint, tokenizer, prompts, store, options, report, stop)
    output.note(f"Loading {path} ...")
    fast = {"fast": settings.fast, "cache_dir": settings.cache_dir, "calibrate": False}
    target = load_target(path, settings.engine, settings.dtype, **fast)
    return answer_prompts(target, prompts, store, options, report, stop)
