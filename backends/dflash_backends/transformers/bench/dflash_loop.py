"""The generation loop of the package `dflash` 0.1.0 on an untouched transformers model: the yardstick."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from dflash_backends.transformers.demo_model import PACKAGE, smollm2_folder
from dflash_backends.transformers.pretrained import offline
from dflash_backends.transformers.target import TransformersTarget
from dflash_core.bench.answer import Answer
from dflash_core.bench.systems.base import Job
from dflash_core.bench.systems.embedded import drafting
from dflash_core.bench.systems.in_turn import serve_in_turn
from dflash_core.bench.workbench import Workbench, encode, in_force
from dflash_core.errors import UnsupportedError
from dflash_core.settings import Settings
from dflash_core.stats import RequestStats

VERSION = "0.1.0"

USED = ("target", "draft", "dtype", "cache_dir", "block_size", "temperature", "top_k", "top_p")
"""Settings that it follows."""


class DFlashLoopSystem:
    """`dflash_generate` with a draft and a target of its own classes, one request at a time."""

    local = True
    in_process = True

    def __init__(self, target: TransformersTarget, settings: Settings, target_folder: str) -> None:
        """
        Args:
            target: asked for its tokenizer alone; the loop has a model of its own, as its author loads it.
        """
        import dflash.model
        from transformers import AutoConfig, AutoModelForCausalLM

        self._target = target
        self._settings = settings
        self._at_once: int | None = 1
        self._generate = dflash.model.dflash_generate
        dtype, draft = getattr(torch, settings.dtype), str(settings.draft)
        with offline():
            second = "DFlash2DraftModel" in (AutoConfig.from_pretrained(draft).architectures or [])
            kind = dflash.model.DFlash2DraftModel if second else dflash.model.DFlashDraftModel
            self._model = AutoModelForCausalLM.from_pretrained(target_folder, dtype=dtype).eval()
            self._draft = kind.from_pretrained(draft, dtype=dtype).eval()
        self._model.to(target.info.device)
        self._draft.to(target.info.device)
        self._block = settings.block_size or int(self._draft.block_size)
        if not torch.cuda.is_available():
            dflash.model._cuda_time = perf_counter  # its own clock insists on a CUDA device

    @property
    def about(self) -> Mapping[str, Any]:
        return {"kind": f"dflash-{VERSION}", "settings": in_force(self._settings, USED)}

    def open(self, at_once: int | None) -> None:
        self._at_once = at_once

    def serve(self, jobs: Sequence[Job]) -> list[Answer]:
        prompts = {id(job): encode(self._target, job.ask) for job in jobs}
        with warnings.catch_warnings():
            # It names the cache as older versions of transformers do, at every forward.
            warnings.simplefilter("ignore", FutureWarning)
            return serve_in_turn(jobs, self._at_once, lambda job: self._respond(job, prompts[id(job)]))

    def _respond(self, job: Job, prompt: Sequence[int]) -> Answer:
        chosen, device = self._settings, self._target.info.device
        stamps: list[float] = []
        # The loop does not stream. A cycle's tokens are known when the target's forward returns.
        hook = self._model.register_forward_hook(lambda *_: stamps.append(perf_counter()))
        torch.manual_seed(job.seed)
        begin = perf_counter()
        try:
            out = self._generate(
                self._draft,
                self._model,
                torch.tensor([list(prompt)], device=device),
                job.max_new_tokens,
                list(self._target.info.eos_token_ids) or None,
                temperature=chosen.temperature,
                top_p=chosen.top_p,
                top_k=chosen.top_k,
                block_size=chosen.block_size,
                return_stats=True,
            )
        finally:
            hook.remove()
        end = perf_counter()
        lengths = [int(length) for length in out.acceptance_lengths]
        tokens = out.output_ids[0, len(prompt) :].tolist()
        times = [*stamps[: len(lengths)], end] if lengths else [end]
        detokenize = self._target.detokenize
        return Answer(
            ask=job.ask.id,
            repeat=job.repeat,
            issued=0.0,
            deliveries=tuple((when - begin, n) for when, n in zip(times, [1, *lengths], strict=True)),
            prompt_tokens=len(prompt),
            new_tokens=len(tokens),
            tokens=tuple(tokens),
            text=None if detokenize is None else detokenize(tokens),
            finish_reason="stop"
            if tokens[-1:] and tokens[-1] in self._target.info.eos_token_ids
            else "length",
            drafting=drafting(counters(lengths, job.max_new_tokens, self._block)),
        )


def counters(lengths: Sequence[int], max_new_tokens: int, block: int) -> RequestStats:
    """Counters of a request from its acceptance lengths: the loop verifies all that still fits.

    An end token inside a block cuts the last length short; the drafts behind it then count as rejected.
    """
    stats, produced = RequestStats(prompt_tokens=0), 1
    for length in lengths:
        depth = min(block, max_new_tokens + 1 - produced) - 1
        accepted = min(length - 1, depth)
        stats.record(drafted=depth, verified=depth, depth=depth, accepted=accepted, produced=length)
        produced += length
    return stats


def dflash_loop(bench: Workbench, options: Mapping[str, str]) -> DFlashLoopSystem:
    """`--system dflash-0.1.0`; the options are settings, of which it knows a few.

    Raises:
        SettingsError: an option is none of them.
        UnsupportedError: the package is not installed, or the pair is none that it can load.
    """
    try:
        found = version("dflash")
    except PackageNotFoundError:
        raise UnsupportedError(
            f"The package dflash is not installed. Run `pip install --no-deps dflash=={VERSION}`."
        ) from None
    if found != VERSION:
        raise UnsupportedError(f"dflash {found} is installed; its loop is known as of {VERSION} only.")
    resolved = bench.resolve(options, f"dflash-{VERSION}", USED)
    target, path = bench.target(resolved), str(resolved.require("target"))
    resolved.require("draft")
    if path == f"package:{PACKAGE}":
        path = str(smollm2_folder(resolved.settings.cache_dir))
    if not isinstance(target, TransformersTarget) or not Path(path).is_dir():
        raise UnsupportedError(f"dflash {VERSION} loads folders of transformers models, and {path} is none.")
    return DFlashLoopSystem(target, resolved.settings, path)
