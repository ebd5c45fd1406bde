"""The target's own answers from an OpenAI-compatible endpoint, several at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event, Thread

from dflash_core.errors import DFlashError
from dflash_core.tokenizer import ChatTokenizer
from dflash_core.training.data.answering import (
    DECLINED,
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
from dflash_core.training.data.encoding import PATIENCE, PromptEncoder
from dflash_core.training.data.endpoint import DeclinedError, Endpoint, EndpointError, Reply
from dflash_core.training.data.prompts import Prompt
from dflash_core.training.data.store import AnswerStore

TICK = 0.2
"""Seconds after which a wait for answers looks whether it is to stop."""


@dataclass(frozen=True)
class _Question:
    prompt: Prompt
    ids: list[int]


@dataclass(frozen=True)
class _Outcome:
    question: _Question
    result: Reply | BaseException


def ask_endpoint(
    endpoint: Endpoint,
    tokenizer: ChatTokenizer,
    prompts: Sequence[Prompt],
    store: AnswerStore,
    options: AnswerOptions,
    on_progress: Report = ignore,
    stop: Callable[[], bool] = never,
) -> Progress:
    """As `answer_prompts`, over HTTP, with `options.max_batch` requests under way at a time.

    The texts are tokenised here with the target's tokenizer. That gives the tokens that the target produced
    wherever it produced the ones that its tokenizer would; an end token is added to what ended by itself.

    Raises:
        EndpointError: the endpoint cannot be used. What it has answered is written before.
        RequestError: there is no chat template, or it refuses everything.
        DFlashError: a shard cannot be written.
    """
    encoder = PromptEncoder(tokenizer.encode_chat, options)
    waiting = waiting_prompts(prompts, store, options.seed)
    over = Event()
    todo: SimpleQueue[_Question] = SimpleQueue()
    outcomes: SimpleQueue[_Outcome] = SimpleQueue()
    workers = min(options.max_batch, len(waiting))
    for _ in range(workers):
        # Daemons: when everything is over, nobody waits for an answer that a server takes minutes for.
        Thread(target=_work, args=(endpoint, options, todo, outcomes, over), daemon=True).start()
    declined = under_way = 0
    try:
        with Collector(store, options, len(prompts), len(waiting)) as collector:
            questions = _questions(waiting, encoder, options, collector)
            while not stop():
                while under_way < 2 * workers and (question := next(questions, None)) is not None:
                    todo.put(question)
                    under_way += 1
                if not under_way:
                    break
                try:
                    outcome = outcomes.get(timeout=TICK)
                except Empty:
                    continue
                under_way -= 1
                prompt, result = outcome.question.prompt, outcome.result
                if isinstance(result, DeclinedError):
                    declined += 1
                    collector.leave_out(prompt, DECLINED)
                    if declined >= PATIENCE and not collector.answers:
                        raise EndpointError(f"The endpoint refuses every prompt: {result}")
                elif isinstance(result, BaseException):
                    raise result
                else:
                    tokens = answer_tokens(tokenizer, result, options.max_new_tokens)
                    collector.answer(prompt, outcome.question.ids, tokens, result.finish)
                on_progress(collector.progress)
    finally:
        over.set()
    return collector.progress


def answer_tokens(tokenizer: ChatTokenizer, reply: Reply, limit: int) -> list[int]:
    """Token ids of an answer, with an end token where the model ended it, at most `limit` of them."""
    ids = tokenizer.encode_answer(reply.text)
    if reply.finish == "stop" and tokenizer.eos_token_id is not None:
        ids = [*ids, tokenizer.eos_token_id]
    return ids[:limit]


def _questions(
    waiting: Sequence[Prompt], encoder: PromptEncoder, options: AnswerOptions, collector: Collector
) -> Iterator[_Question]:
    for prompt in waiting:
        ids = encoder(prompt)
        if ids is None:
            collector.leave_out(prompt, REFUSED)
        elif len(ids) > options.max_prompt_tokens:
            collector.leave_out(prompt, TOO_LONG)
        else:
            yield _Question(prompt, ids)


def _work(
    endpoint: Endpoint,
    options: AnswerOptions,
    todo: "SimpleQueue[_Question]",
    outcomes: "SimpleQueue[_Outcome]",
    over: Event,
) -> None:
    while not over.is_set():
        try:
            question = todo.get(timeout=TICK)
        except Empty:
            continue
        try:
            result: Reply | BaseException = endpoint.chat(
                question.prompt.chat(),
                max_tokens=options.max_new_tokens,
                temperature=options.temperature,
                seed=sampling_seed(question.prompt, options.seed),
                template=options.template,
                pause=over.wait,
            )
        except DFlashError as error:
            result = error
        except Exception as error:  # noqa: BLE001 a bug in a thread must not make the other one wait for ever
            result = error
        outcomes.put(_Outcome(question, result))
