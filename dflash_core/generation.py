"""`generate()`: the one call that replaces `model.generate()`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from dflash_core.decoder import Decoder, Delta
from dflash_core.drafter.base import Drafter
from dflash_core.errors import RequestError, UnsupportedError
from dflash_core.plugins import provider
from dflash_core.processors import LogitsProcessor
from dflash_core.request import Detokenize, Request, cut_at_stop
from dflash_core.sampling import SamplingParams, whole
from dflash_core.schedule.base import Schedule
from dflash_core.stats import Stats
from dflash_core.target import TargetModel

TokenIds = Tensor | Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Any]
Stop = str | Sequence[int]

DEFAULT_NEW_TOKENS = 256


@dataclass(frozen=True)
class GenerateResult:
    """What came out.

    Attributes:
        prompts, tokens: token ids, a list a request; `tokens` without the prompt.
        text: decoded `tokens`, special tokens and stop strings left out; `None` without a tokenizer.
        finish_reasons: "stop" or "length", one a request.
        stats: counters of the run.
    """

    prompts: list[list[int]]
    tokens: list[list[int]]
    text: list[str] | None
    finish_reasons: list[str | None]
    stats: Stats

    def sequences(self, pad_token_id: int = 0) -> Tensor:
        """Prompt and answer of each request, [B, longest] int64, padded on the right."""
        rows = [torch.tensor(p + t) for p, t in zip(self.prompts, self.tokens, strict=True)]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_token_id)


def generate(
    target: TargetModel,
    draft: Drafter | None,
    input_ids: TokenIds,
    *,
    attention_mask: Tensor | Sequence[Sequence[int]] | None = None,
    max_new_tokens: int | None = None,
    max_length: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    do_sample: bool | None = None,
    temperature: float | None = None,
    top_k: int | None = 0,
    top_p: float | None = 1.0,
    min_p: float | None = 0.0,
    seed: int | Sequence[int] = 0,
    block_size: int | None = None,
    verify_length: int | str = "auto",
    tree_budget: int | str | None = "auto",
    logits_processor: Sequence[LogitsProcessor] | LogitsProcessor | None = None,
    stop: Stop | Sequence[Stop] | None = None,
    on_tokens: Callable[[Delta], None] | None = None,
    verifier: str = "sampling",
    schedule: str | Schedule = "auto",
    rollback: str = "auto",
    max_batch: int = 8,
    **penalties: Any,
) -> GenerateResult:
    """Continue one or several prompts; the output is the target's own, only faster.

    Args:
        target: from `load_target`.
        draft: from `load_draft`; `None` decodes plainly.
        input_ids: [T] or [B, T] integers, ragged lists, or a mapping with `input_ids` (and `attention_mask`),
            as a tokenizer returns it.
        attention_mask: [B, T]; positions with 0 are padding and are left out.
        max_new_tokens: 256 when neither it nor `max_length` (prompt included) is given.
        eos_token_id: one or several; the target's own when `None`; an empty list for none.
        do_sample: `False` is greedy; `True` without a temperature is temperature 1.
        temperature: 0 (greedy) when neither it nor `do_sample` is given.
        top_k, top_p, min_p: filters; `None` is off.
        seed: of request i it is `seed + i`, or `seed[i]`. The same seed gives the same answer whoever else
            is in the batch, and for point-mass drafts the very answer of plain sampling.
        block_size: slots of a block, anchor included; the draft's own when `None`; 1 is plain decoding.
        verify_length: "auto" (the schedule decides), "block", or a number that counts the anchor.
        tree_budget: nodes of a token tree besides the anchor; `None` for a chain; "auto" leaves it to the
            schedule where `verify_length` is "auto" as well, and is a chain otherwise.
        logits_processor: applied to the target's logits with each node's own prefix; Hugging Face's fit.
        stop: a string or token sequence, or several.
        on_tokens: called with each request's new tokens as they are committed.
        verifier, schedule, rollback: names of registered plugins; a schedule object keeps what it learnt.
        max_batch: requests decoded together.
        penalties: further arguments of `model.generate` that the engine can turn into logits processors
            (`repetition_penalty`, `no_repeat_ngram_size`, `bad_words_ids`, `min_new_tokens`, ...).

    Raises:
        RequestError: an argument makes no sense, or the request does not fit the target.
        UnsupportedError: the target cannot do what is asked.
    """
    prompts = token_lists(input_ids, attention_mask)
    seeds = seeds_of(seed, len(prompts))
    eos = target.info.eos_token_ids if eos_token_id is None else as_tuple(eos_token_id)
    chosen = choose_temperature(do_sample, temperature)
    detokenize = cast(Detokenize | None, getattr(target, "detokenize", None))
    decoder = build_decoder(
        target, draft, verifier=verifier, schedule=schedule, rollback=rollback, max_batch=max_batch
    )
    tokens: list[list[int]] = [[] for _ in prompts]
    for index, prompt in enumerate(prompts):
        decoder.add(
            Request(
                prompt=tuple(prompt),
                max_new_tokens=new_token_limit(len(prompt), max_new_tokens, max_length),
                eos_token_ids=eos,
                sampling=SamplingParams(
                    chosen, top_k or 0, 1.0 if top_p is None else top_p, min_p or 0.0, seeds[index]
                ),
                stop=stop_sequences(stop),
                block_size=block_size,
                verify_length=verify_length,
                tree_budget=tree_budget,
                processors=processors_of(target, logits_processor, penalties, len(prompt), eos),
            )
        )
    while not decoder.idle:
        for delta in decoder.step():
            tokens[delta.id] += delta.tokens
            if on_tokens is not None:
                on_tokens(delta)
    stats = decoder.stats
    text = None
    if detokenize is not None:
        text = [cut_at_stop(detokenize(ids), stop_sequences(stop)) for ids in tokens]
    return GenerateResult(prompts, tokens, text, [r.finish_reason for r in stats.requests], stats)


def build_decoder(
    target: TargetModel,
    draft: Drafter | None,
    *,
    verifier: str = "sampling",
    schedule: str | Schedule = "auto",
    rollback: str = "auto",
    max_batch: int = 8,
) -> Decoder:
    """A decoder from the names of registered plugins.

    Raises:
        UnsupportedError: the rollback policy does not fit the target.
    """
    recurrent = target.info.recurrent
    if rollback == "auto":
        crop, gather = ("replay", "replay") if recurrent else ("crop", "gather")
    elif recurrent and rollback in ("crop", "gather"):
        raise UnsupportedError(
            f"rollback is {rollback!r}, but {target.info.name} has recurrent layers, whose state cannot be "
            'cropped; use "replay" or "checkpoint".'
        )
    elif rollback == "crop":
        crop, gather = "crop", "gather"
    else:
        crop = gather = rollback
    return Decoder(
        target,
        draft,
        verifier=provider("verifiers", verifier)(),
        schedule=plan_with(schedule, target, draft),
        crop=provider("rollbacks", crop)(),
        gather=provider("rollbacks", gather)(),
        detokenize=getattr(target, "detokenize", None),
        max_batch=max_batch,
    )


def plan_with(schedule: str | Schedule, target: TargetModel, draft: Drafter | None) -> Schedule:
    """A schedule by name, or the one given. Keep it over several calls to keep what it learnt."""
    if not isinstance(schedule, str):
        return schedule
    return cast(Schedule, provider("schedules", schedule)(target, draft))


NO_TOKENS = "input_ids must be token ids: a tensor [T] or [B, T], a list, or a list of lists."


def token_lists(
    input_ids: TokenIds, attention_mask: Tensor | Sequence[Sequence[int]] | None = None
) -> list[list[int]]:
    """Prompts as lists, padding left out.

    Raises:
        RequestError: not one of the accepted shapes.
    """
    if isinstance(input_ids, Mapping):
        if "input_ids" not in input_ids:
            raise RequestError(f"input_ids is a mapping without 'input_ids'; it has {', '.join(input_ids)}.")
        mask = input_ids.get("attention_mask") if attention_mask is None else attention_mask
        return token_lists(input_ids["input_ids"], mask)
    if isinstance(input_ids, Tensor):
        rows = input_ids.tolist()
    else:
        rows = [*input_ids] if isinstance(input_ids, Sequence) else None
    if not isinstance(rows, list):
        raise RequestError(NO_TOKENS)
    if rows and not isinstance(rows[0], Sequence | Tensor):
        rows = [rows]
    if not all(isinstance(row, Sequence | Tensor) for row in rows):
        raise RequestError(NO_TOKENS)
    prompts = [row.tolist() if isinstance(row, Tensor) else list(row) for row in rows]
    if not prompts or not all(type(token) is int for prompt in prompts for token in prompt):
        raise RequestError(NO_TOKENS)
    if attention_mask is None:
        return prompts
    if not isinstance(attention_mask, Tensor | Sequence):
        raise RequestError(f"attention_mask is {attention_mask!r}; it must have the shape of input_ids.")
    kept = (
        attention_mask.tolist() if isinstance(attention_mask, Tensor) else [list(m) for m in attention_mask]
    )
    if kept and not isinstance(kept[0], list):
        kept = [kept]
    if [len(m) for m in kept] != [len(p) for p in prompts]:
        raise RequestError("attention_mask does not have the shape of input_ids.")
    return [[t for t, keep in zip(p, m, strict=True) if keep] for p, m in zip(prompts, kept, strict=True)]


def seeds_of(seed: int | Sequence[int], requests: int) -> Sequence[int]:
    """One a request, counted on from a single one.

    Raises:
        RequestError: it is no whole number, or there is another number of them than of requests.
    """
    if not isinstance(seed, Sequence):
        return range(whole("seed", seed), seed + requests)
    if len(seed) != requests:
        raise RequestError(f"seed has {len(seed)} entries for {requests} requests.")
    return seed


def as_tuple(ids: int | Sequence[int] | Tensor) -> tuple[int, ...]:
    """One id or several, as a tuple.

    Raises:
        RequestError: something else is among them.
    """
    if isinstance(ids, Tensor):
        ids = ids.tolist()
    found = tuple(ids) if isinstance(ids, Sequence) else (ids,)
    return tuple(whole("eos_token_id", one) for one in found)


def choose_temperature(do_sample: bool | None, temperature: float | None) -> float:
    """The temperature that `do_sample` and `temperature` together mean; 0 is greedy.

    Raises:
        RequestError: they contradict each other.
    """
    if do_sample is False and temperature not in (None, 0, 1):
        raise RequestError(f"do_sample is False, but temperature is {temperature}; leave one of them out.")
    if do_sample is True and temperature == 0:
        raise RequestError("do_sample is True, but temperature is 0, which is greedy; leave one of them out.")
    if do_sample is None:
        return temperature or 0.0
    return (1.0 if temperature is None else temperature) if do_sample else 0.0


def new_token_limit(prompt: int, max_new_tokens: int | None, max_length: int | None) -> int:
    """How many tokens may be produced.

    Raises:
        RequestError: both limits are given, or the prompt alone reaches `max_length`.
    """
    if max_length is None:
        return DEFAULT_NEW_TOKENS if max_new_tokens is None else max_new_tokens
    if max_new_tokens is not None:
        raise RequestError("max_new_tokens and max_length are both given; leave one of them out.")
    if max_length <= prompt:
        raise RequestError(f"max_length is {max_length}, but the prompt alone has {prompt} tokens.")
    return max_length - prompt


STOPS = "it must be a string, token ids, or a list of such."


def stop_sequences(stop: Stop | Sequence[Stop] | None) -> tuple[str | tuple[int, ...], ...]:
    """One stop or several, as a tuple of strings and token tuples."""
    if stop is None:
        return ()
    if isinstance(stop, str):
        return (stop,)
    if not isinstance(stop, Sequence):
        raise RequestError(f"stop is {stop!r}; {STOPS}")
    items = list(stop)
    if not all(isinstance(item, str | int | Sequence) for item in items):
        raise RequestError(f"stop is {stop!r}; {STOPS}")
    if items and all(isinstance(item, int) for item in items):
        return (tuple(cast(list[int], items)),)
    return tuple(item if isinstance(item, str) else tuple(cast(Sequence[int], item)) for item in items)


def processors_of(
    target: TargetModel,
    given: Sequence[LogitsProcessor] | LogitsProcessor | None,
    penalties: Mapping[str, Any],
    prompt_length: int,
    eos: tuple[int, ...],
) -> tuple[LogitsProcessor, ...]:
    """The processors given, after those that the engine makes of `model.generate`'s further arguments.

    Raises:
        RequestError: the engine does not know an argument.
    """
    made: tuple[LogitsProcessor, ...] = ()
    if penalties:
        build = getattr(target, "logits_processors", None)
        if build is None:
            raise RequestError(f"Unknown arguments: {', '.join(sorted(penalties))}.")
        made = tuple(build(penalties, prompt_length, eos))
    if given is None:
        return made
    return (*made, given) if callable(given) and not isinstance(given, Sequence) else (*made, *given)
