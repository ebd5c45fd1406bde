"""The target's own answers, many at a time."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash_core.errors import RequestError
from dflash_core.generation import build_decoder
from dflash_core.request import Request
from dflash_core.sampling import SamplingParams
from dflash_core.target import TargetModel
from dflash_core.training.data.prompts import Prompt
from dflash_core.training.data.store import Answer, AnswerStore

SHARD = 256
"""Answers a shard; what a kill can lose at most, besides those that are being made."""

SHORTEST = 4
"""Answers of fewer tokens teach nothing and are kept out."""


@dataclass(frozen=True)
class AnswerOptions:
    """How answers are made.

    Attributes:
        max_prompt_tokens: longer prompts are left out.
        max_new_tokens: where an answer is cut.
        temperature: 0 is greedy.
        seed: of the order and, plus a prompt's place in it, of its sampling.
        max_batch: answers made at a time.
    """

    max_prompt_tokens: int = 512
    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    max_batch: int = 128


@dataclass(frozen=True)
class Progress:
    """How far it is: answers and their tokens, of so many prompts."""

    answers: int
    tokens: int
    prompts: int


def answer_prompts(
    target: TargetModel,
    prompts: Sequence[Prompt],
    store: AnswerStore,
    options: AnswerOptions,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Answer the prompts that have no answer yet, in a shuffled order that is always the same.

    Whatever moment it is stopped at, a shard is complete or absent, and the next call goes on.

    Raises:
        RequestError: the target has no chat template.
        DFlashError: a shard cannot be written.
    """
    encode = getattr(target, "encode_chat", None)
    if encode is None:
        raise RequestError(f"{target.info.name} has no tokenizer, so it cannot be asked in words.")
    order = list(prompts)
    random.Random(options.seed).shuffle(order)
    done = store.done()
    waiting = [(place, prompt) for place, prompt in enumerate(order) if prompt.id not in done]
    decoder = build_decoder(target, None, schedule="fixed", max_batch=options.max_batch)
    running: dict[int, tuple[Prompt, list[int], list[int]]] = {}
    finished: list[Answer] = []
    answers = tokens = 0

    def admit() -> None:
        while waiting and len(running) < options.max_batch:
            place, prompt = waiting.pop(0)
            ids = encode(prompt.chat())
            if not ids or len(ids) > options.max_prompt_tokens:
                continue
            sampling = SamplingParams(options.temperature, seed=options.seed + place)
            request = Request(tuple(ids), options.max_new_tokens, target.info.eos_token_ids, sampling)
            running[decoder.add(request)] = prompt, ids, []

    admit()
    while running:
        for delta in decoder.step():
            prompt, ids, new = running[delta.id]
            new += delta.tokens
            if delta.finish_reason is None:
                continue
            del running[delta.id]
            answers, tokens = answers + 1, tokens + len(new)
            if len(new) >= SHORTEST:
                record = {"id": prompt.id, "source": prompt.source, "finish": delta.finish_reason}
                finished.append(Answer(ids, new, record))
        admit()
        if len(finished) >= SHARD:
            store.add(finished)
            finished = []
        on_progress(Progress(answers, tokens, len(order)))
    if finished:
        store.add(finished)
    return Progress(answers, tokens, len(order))
