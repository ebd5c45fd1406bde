"""Any OpenAI-compatible server, by streaming."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Thread
from time import perf_counter, sleep
from typing import Any

from dflash_core.bench.answer import Answer
from dflash_core.bench.systems.base import Job
from dflash_core.bench.systems.extras import (
    drafting_between,
    drafting_of_chunks,
    read_counters,
)
from dflash_core.bench.systems.spec import take
from dflash_core.bench.systems.stream import Endpoint, EndpointError
from dflash_core.bench.workbench import SAMPLING, Workbench, in_force
from dflash_core.errors import SettingsError
from dflash_core.settings import Settings

COUNTED = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
EXTRAS: tuple[Mapping[str, Any], ...] = (
    {**COUNTED, "return_spec_tokens_details": True},
    COUNTED,
    {"stream_options": {"include_usage": True}},
    {},
)
"""Beyond what every server takes, most first; what one refuses as malformed is not asked for again."""

OFF: Mapping[str, Any] = {"top_k": -1, "min_p": 0.0}
"""Filters that are off, as SGLang and vLLM spell it: unsaid, a server's own defaults would be in force.
One that refuses the names has none."""

REFUSED = (400, 422)
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class EndpointSystem:
    """Asks a server as a user would, and takes the time of every chunk."""

    in_process = False

    def __init__(self, endpoint: Endpoint, model: str, settings: Settings) -> None:
        self._endpoint = endpoint
        self._model = model
        self._settings = settings
        # Greedy decoding has no filter to turn off.
        off = (OFF, {}) if settings.temperature > 0 else ({},)
        self._ladder = [{**extra, **filters} for filters in off for extra in EXTRAS]
        self._extras = 0
        self._answered = False
        self._at_once: int | None = 1

    @property
    def local(self) -> bool:
        return self._endpoint.host in LOOPBACK

    @property
    def about(self) -> Mapping[str, Any]:
        asked = in_force(self._settings, SAMPLING)
        return {"kind": "endpoint", "url": self._endpoint.url, "model": self._model, "settings": asked}

    def open(self, at_once: int | None) -> None:
        self._at_once = at_once

    def serve(self, jobs: Sequence[Job]) -> list[Answer]:
        alone = len(jobs) == 1
        before = self._counters() if alone else {}
        start = perf_counter()
        workers = min(self._at_once or len(jobs), len(jobs))
        answers = in_threads(lambda job: self._answer(job, start), jobs, workers)
        if alone and answers[0].drafting is None and answers[0].error is None:
            # Counters of the whole server say something about a request when there was only this one.
            answers[0] = replace(answers[0], drafting=drafting_between(before, self._counters()))
        return answers

    def _answer(self, job: Job, start: float) -> Answer:
        if job.arrival is not None:
            sleep(max(0.0, start + job.arrival - perf_counter()))
        issued = perf_counter() - start if job.arrival is None else job.arrival
        while True:
            extras = self._extras
            try:
                return self._attempt(job, start, issued, self._ladder[extras])
            except EndpointError as error:
                if self._answered or error.status not in REFUSED or extras == len(self._ladder) - 1:
                    return Answer(job.ask.id, job.repeat, issued, error=str(error))
                self._extras = max(self._extras, extras + 1)

    def _attempt(self, job: Job, start: float, issued: float, extras: Mapping[str, Any]) -> Answer:
        path = "/v1/chat/completions" if job.ask.messages else "/v1/completions"
        came: list[tuple[float, dict[str, Any]]] = []
        for chunk in self._endpoint.stream(path, self._body(job, extras)):
            came.append((perf_counter() - start - issued, chunk))
        self._answered = True
        return read_answer(job, issued, came)

    def _body(self, job: Job, extras: Mapping[str, Any]) -> dict[str, Any]:
        chosen = self._settings
        asked = (
            {"messages": [dict(message) for message in job.ask.messages]}
            if job.ask.messages
            else {"prompt": job.ask.prompt}
        )
        body = {
            "model": self._model,
            **asked,
            "max_tokens": job.max_new_tokens,
            "temperature": chosen.temperature,
            "seed": job.seed,
            "stream": True,
            **extras,
        }
        filters = {"top_k": chosen.top_k, "min_p": chosen.min_p}
        if chosen.temperature > 0 or chosen.top_p < 1:
            body["top_p"] = chosen.top_p
        return body | {name: value for name, value in filters.items() if value}

    def _counters(self) -> dict[str, float]:
        try:
            return read_counters(self._endpoint.get("/metrics"))
        except EndpointError:
            return {}


def in_threads(answer: Callable[[Job], Answer], jobs: Sequence[Job], workers: int) -> list[Answer]:
    """Answer jobs in order, so many at a time. An interrupt leaves at once, whatever is still running."""
    results: dict[int, Answer | BaseException] = {}
    waiting = iter(enumerate(jobs))

    def work() -> None:
        # `next` of a list's iterator is one step of the interpreter, so no two threads get the same job.
        for index, job in waiting:
            try:
                results[index] = answer(job)
            except BaseException as error:  # noqa: BLE001 raised again below, in the thread that waits
                results[index] = error

    threads = [Thread(target=work, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)
    for _, result in sorted(results.items()):
        if isinstance(result, BaseException):
            raise result
    return [result for _, result in sorted(results.items()) if isinstance(result, Answer)]


def read_answer(job: Job, issued: float, came: Sequence[tuple[float, dict[str, Any]]]) -> Answer:
    """An answer from the chunks of a stream and when, after `issued`, each came."""
    stamps: list[tuple[float, int | None]] = []
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    reason = None
    for when, chunk in came:
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or []:
            reason = choice.get("finish_reason") or reason
            piece = text_of(choice)
            if piece:
                pieces.append(piece)
                stamps.append((when, (chunk.get("usage") or {}).get("completion_tokens")))
    total = int(usage.get("completion_tokens") or len(stamps))
    return Answer(
        ask=job.ask.id,
        repeat=job.repeat,
        issued=issued,
        deliveries=deliveries(stamps, total),
        prompt_tokens=usage.get("prompt_tokens"),
        new_tokens=total,
        text="".join(pieces),
        finish_reason=reason,
        drafting=drafting_of_chunks([chunk for _, chunk in came]),
        error=None if stamps else "The answer had no text.",
        notes={} if usage else {"tokens": "the server does not count them; chunks were counted"},
    )


def text_of(choice: Mapping[str, Any]) -> str:
    """What a choice of a chunk adds, thoughts included; of chats and completions, streamed or whole."""
    for holder in (choice.get("delta"), choice.get("message"), choice):
        if isinstance(holder, Mapping):
            parts = [holder.get(name) for name in ("reasoning_content", "reasoning", "content", "text")]
            text = "".join(part for part in parts if isinstance(part, str))
            if text:
                return text
    return ""


def deliveries(stamps: Sequence[tuple[float, int | None]], total: int) -> tuple[tuple[float, int], ...]:
    """How many tokens each chunk brought.

    Args:
        stamps: when a chunk came, and how many tokens there were so far, where the server says so.
        total: tokens in all. Without counts the first chunk has one (the prefill's) and the others share the
            rest evenly, which no figure but the first delivery's depends on.
    """
    if not stamps:
        return ()
    counts = [count for _, count in stamps if count is not None]
    if len(counts) == len(stamps) and counts == sorted(counts):
        sizes = [here - before for before, here in zip([0, *counts], counts, strict=False)]
        sizes[-1] += total - counts[-1]
    elif len(stamps) == 1:
        sizes = [total]
    else:
        others = len(stamps) - 1
        sizes = [1, *((total - 1) * (i + 1) // others - (total - 1) * i // others for i in range(others))]
    return tuple((when, size) for (when, _), size in zip(stamps, sizes, strict=True))


def endpoint(bench: Workbench, options: Mapping[str, str]) -> EndpointSystem:
    """`--system endpoint:url=...,model=...,key_env=...,timeout=...`.

    Raises:
        SettingsError: an option is unknown or missing.
        EndpointError: the server cannot be reached.
    """
    chosen = take(options, "endpoint", url=None, model="", key_env="", timeout="600")
    key = os.environ.get(chosen["key_env"]) if chosen["key_env"] else None
    if chosen["key_env"] and not key:
        raise SettingsError(f"key_env names {chosen['key_env']}, but this variable is not set.")
    try:
        timeout = float(chosen["timeout"])
    except ValueError:
        raise SettingsError(f"timeout is {chosen['timeout']!r}; it must be a number of seconds.") from None
    where = Endpoint(chosen["url"], key, timeout)
    return EndpointSystem(where, chosen["model"] or first_model(where), bench.settings)


def first_model(where: Endpoint) -> str:
    """The model that a server names first.

    Raises:
        EndpointError: it cannot be reached, or names none.
    """
    try:
        return str(json.loads(where.get("/v1/models"))["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise EndpointError(f"{where.url}/v1/models names no model; give model=NAME.") from None
