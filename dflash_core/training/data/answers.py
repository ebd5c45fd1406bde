"""The target's own answers, many at a time, from an engine that is driven here."""

from collections.abc import Callable, Iterator, Sequence

from dflash_core.decoder import Decoder
from dflash_core.errors import RequestError
from dflash_core.generation import build_decoder
from dflash_core.request import Request
from dflash_core.sampling import SamplingParams
from dflash_core.target import TargetModel
from dflash_core.training.data.answering import (
    REFUSED,
    TOO_LONG,
    AnswerOptions,
    Collector,
    Progress,
    Report,
    ignore,
    never,
    sampling_seed,
    waiting_prompts,
)
from dflash_core.training.data.encoding import Encode, PromptEncoder
from dflash_core.training.data.prompts import Prompt
from dflash_core.training.data.store import AnswerStore


def answer_prompts(
    target: TargetModel,
    prompts: Sequence[Prompt],
    store: AnswerStore,
    options: AnswerOptions,
    on_progress: Report = ignore,
    stop: Callable[[], bool] = never,
) -> Progress:
    """Answer the prompts that have no answer yet, in a shuffled order that is always the same.

    Whatever moment it is stopped at, a shard is complete or absent, and the next call goes on.

    Args:
        on_progress: called after every step.
        stop: asked before every step; when it says so, what is finished is written and the rest is left.

    Raises:
        RequestError: the target has no chat template, or fewer positions than the options ask for.
        DFlashError: a shard cannot be written.
    """
    encode: Encode | None = getattr(target, "encode_chat", None)
    if encode is None:
        raise RequestError(f"{target.info.name} has no tokenizer, so it cannot be asked in words.")
    _check_room(target, options)
    encoder = PromptEncoder(encode, options)
    waiting = waiting_prompts(prompts, store, options.seed)
    decoder = build_decoder(target, None, schedule="fixed", max_batch=options.max_batch)
    running: dict[int, tuple[Prompt, list[int], list[int]]] = {}
    with Collector(store, options, len(prompts), len(waiting)) as collector:
        queue = iter(waiting)
        while not stop():
            _admit(queue, target, encoder, options, decoder, running, collector)
            if not running:
                break
            for delta in decoder.step():
                prompt, ids, new = running[delta.id]
                new += delta.tokens
                if delta.finish_reason is not None:
                    del running[delta.id]
                    collector.answer(prompt, ids, new, delta.finish_reason)
            on_progress(collector.progress)
    return collector.progress


def _check_room(target: TargetModel, options: AnswerOptions) -> None:
    wanted, there = options.max_prompt_tokens + options.max_new_tokens, target.info.max_positions
    if wanted > there:
        raise RequestError(
            f"max_prompt_tokens is {options.max_prompt_tokens} and max_new_tokens {options.max_new_tokens}, "
            f"but {target.info.name} takes {there} positions in all. Lower one of them."
        )


def _admit(
    queue: Iterator[Prompt],
    target: TargetModel,
    encoder: PromptEncoder,
    options: AnswerOptions,
    decoder: Decoder,
    running: dict[int, tuple[Prompt, list[int], list[int]]],
    collector: Collector,
) -> None:
    while len(running) < options.max_batch and (prompt := next(queue, None)) is not None:
        ids = encoder(prompt)
        if ids is None:
            collector.leave_out(prompt, REFUSED)
        elif len(ids) > options.max_prompt_tokens:
            collector.leave_out(prompt, TOO_LONG)
        else:
            sampling = SamplingParams(options.temperature, seed=sampling_seed(prompt, options.seed))
            request = Request(tuple(ids), options.max_new_tokens, target.info.eos_token_ids, sampling)
            running[decoder.add(request)] = prompt, ids, []
