"""Prompt lookup: transformers' own speculative decoding without a draft model, on the target of the bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import torch

from dflash_backends.transformers.target import TransformersTarget
from dflash_core.bench.answer import Answer, Drafting, drafting_of
from dflash_core.bench.systems.base import Job
from dflash_core.bench.systems.in_turn import serve_in_turn
from dflash_core.bench.workbench import SAMPLING, TARGET, Workbench, encode, in_force
from dflash_core.errors import SettingsError, UnsupportedError
from dflash_core.settings import Settings

DEFAULT_TOKENS = 10
"""Drafts a cycle: transformers' own default."""

USED = ("tokens", *TARGET, *SAMPLING)
"""Its own option, and the settings that it follows."""


class Stamps:
    """Stands in for a streamer of transformers: notes when tokens are handed out, the prompt left out."""

    def __init__(self) -> None:
        self.begin = perf_counter()
        self.deliveries: list[tuple[float, int]] = []
        self._prompt_seen = False

    def put(self, tokens: torch.Tensor) -> None:
        """Called by `generate` with the prompt, and then with the tokens of each cycle."""
        if self._prompt_seen:
            self.deliveries.append((perf_counter() - self.begin, tokens.numel()))
        self._prompt_seen = True

    def end(self) -> None:
        """Called by `generate` when it is done."""


class PromptLookupSystem:
    """`model.generate(prompt_lookup_num_tokens=...)`, one request at a time."""

    local = True
    in_process = True

    def __init__(self, target: TransformersTarget, settings: Settings, tokens: int) -> None:
        self._target = target
        self._settings = settings
        self._tokens = tokens
        self._at_once: int | None = 1

    @property
    def about(self) -> Mapping[str, Any]:
        settings = in_force(self._settings, USED)
        return {"kind": "prompt-lookup", "tokens": self._tokens, "settings": settings}

    def open(self, at_once: int | None) -> None:
        self._at_once = at_once

    def serve(self, jobs: Sequence[Job]) -> list[Answer]:
        prompts = {id(job): encode(self._target, job.ask) for job in jobs}
        return serve_in_turn(jobs, self._at_once, lambda job: self._respond(job, prompts[id(job)]))

    @torch.inference_mode()
    def _respond(self, job: Job, prompt: Sequence[int]) -> Answer:
        info, model = self._target.info, self._target.model
        ids = torch.tensor([list(prompt)], device=info.device)
        stamps = Stamps()
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=job.max_new_tokens,
            prompt_lookup_num_tokens=self._tokens,
            eos_token_id=list(info.eos_token_ids) or None,
            streamer=stamps,
            **self._sampling(job.seed),
        )
        tokens = output[0, len(prompt) :].tolist()
        deliveries = kept(stamps.deliveries, len(tokens))
        detokenize = self._target.detokenize
        lengths = [count for _, count in deliveries[1:]]
        return Answer(
            ask=job.ask.id,
            repeat=job.repeat,
            issued=0.0,
            deliveries=deliveries,
            prompt_tokens=len(prompt),
            new_tokens=len(tokens),
            tokens=tuple(tokens),
            text=None if detokenize is None else detokenize(tokens),
            finish_reason="stop" if tokens[-1:] and tokens[-1] in info.eos_token_ids else "length",
            drafting=drafting_of(lengths) if lengths else Drafting(),
        )

    def _sampling(self, seed: int) -> dict[str, Any]:
        chosen = self._settings
        if chosen.temperature == 0:
            off = {"temperature": None, "top_k": None, "top_p": None, "min_p": None}
            return {"do_sample": False, **off}
        torch.manual_seed(seed)
        return {
            "do_sample": True,
            "temperature": chosen.temperature,
            "top_k": chosen.top_k,
            "top_p": chosen.top_p,
            "min_p": chosen.min_p or None,
        }


def kept(deliveries: Sequence[tuple[float, int]], total: int) -> tuple[tuple[float, int], ...]:
    """Deliveries cut to the tokens of the answer: the last cycle's may reach behind its end."""
    left, cut = total, []
    for when, count in deliveries:
        if left <= 0:
            break
        cut.append((when, min(count, left)))
        left -= count
    return tuple(cut)


def prompt_lookup(bench: Workbench, options: Mapping[str, str]) -> PromptLookupSystem:
    """`--system prompt-lookup:tokens=10,...`; further options are settings.

    Raises:
        SettingsError: an option makes no sense.
        UnsupportedError: the target is not one of transformers.
    """
    given = dict(options)
    text = given.pop("tokens", str(DEFAULT_TOKENS))
    if not text.isdigit() or int(text) < 1:
        raise SettingsError(f"tokens of prompt-lookup is {text!r}; it must be a whole number from 1.")
    resolved = bench.resolve(given, "prompt-lookup", USED)
    target = bench.target(resolved)
    if not isinstance(target, TransformersTarget):
        raise UnsupportedError(
            f"prompt-lookup is transformers' own, and {target.info.name} runs on another engine."
        )
    return PromptLookupSystem(target, resolved.settings, int(text))
