"""The engine of this package in any of its settings; without a draft it is plain decoding."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter, sleep
from typing import Any

from dflash_core.bench.answer import Answer, Drafting, drafting_of
from dflash_core.bench.systems.base import Job
from dflash_core.bench.workbench import DRAFT, SAMPLING, TARGET, Workbench, encode, in_force
from dflash_core.drafter.base import Drafter
from dflash_core.errors import RequestError
from dflash_core.generation import build_decoder, plan_with
from dflash_core.request import Request
from dflash_core.sampling import SamplingParams
from dflash_core.settings import Settings
from dflash_core.stats import RequestStats
from dflash_core.target import TargetModel

PLAIN = (*TARGET, "verification_batch_size", *SAMPLING)
DRAFTED = (
    *(*TARGET, *DRAFT, "block_size", "schedule", "verify_length", "tree_budget", "verifier", "rollback"),
    *("verification_batch_size", *SAMPLING),
)
"""Settings that each follows; lengths of answers and seeds are the benchmark's, the same for all systems."""


@dataclass
class _Running:
    job: Job
    prompt: int
    issued: float
    tokens: list[int] = field(default_factory=list)
    deliveries: list[tuple[float, int]] = field(default_factory=list)


class EmbeddedSystem:
    """Drives `Decoder` as a server would: requests join between cycles, tokens are stamped when known."""

    local = True
    in_process = True

    def __init__(
        self, target: TargetModel, draft: Drafter | None, settings: Settings, about: Mapping[str, Any]
    ) -> None:
        self._target = target
        self._draft = draft
        self._settings = settings
        self._about = dict(about)
        self.open(1)

    @property
    def about(self) -> Mapping[str, Any]:
        return self._about

    def open(self, at_once: int | None) -> None:
        """A fresh schedule: what it learnt of one level says little about another."""
        self._at_once = at_once
        self._schedule = plan_with(
            "fixed" if self._draft is None else self._settings.schedule, self._target, self._draft
        )

    def serve(self, jobs: Sequence[Job]) -> list[Answer]:
        prompts = [encode(self._target, job.ask) for job in jobs]
        decoder = build_decoder(
            self._target,
            self._draft,
            verifier="sampling" if self._draft is None else self._settings.verifier,
            rollback=self._settings.rollback,
            schedule=self._schedule,
            max_batch=self._at_once or self._settings.verification_batch_size,
        )
        waiting = deque(zip(jobs, prompts, strict=True))
        running: dict[int, _Running] = {}
        added: list[int] = []
        answers: list[Answer] = []
        start = perf_counter()
        while waiting or running:
            now = perf_counter() - start
            while waiting and self._may_begin(waiting[0][0], now, len(running)):
                job, prompt = waiting.popleft()
                issued = now if job.arrival is None else job.arrival
                try:
                    id = decoder.add(self._request(job, prompt))
                except RequestError as error:
                    answers.append(Answer(job.ask.id, job.repeat, issued, error=str(error)))
                    continue
                added.append(id)
                running[id] = _Running(job, len(prompt), issued)
            if not running:
                if waiting:
                    sleep(max(0.0, (waiting[0][0].arrival or 0.0) - (perf_counter() - start)))
                continue
            begun, before = perf_counter() - start, decoder.stats.seconds.prefill
            deltas = decoder.step()
            now = perf_counter() - start
            # A step prefills what is new and then runs a cycle. A first token is known when the prefills are
            # done; taking the cycle behind them for a part of them would hide what a first draft costs.
            filled = begun + decoder.stats.seconds.prefill - before
            for delta in deltas:
                row = running[delta.id]
                known = now if row.deliveries else filled
                row.tokens += delta.tokens
                row.deliveries.append((known - row.issued, len(delta.tokens)))
                if delta.finish_reason is not None:
                    del running[delta.id]
                    stats = decoder.stats.requests[added.index(delta.id)]
                    answers.append(self._answer(row, stats, delta.finish_reason))
        return answers

    def _may_begin(self, job: Job, now: float, running: int) -> bool:
        if job.arrival is not None:
            return job.arrival <= now
        return self._at_once is None or running < self._at_once

    def _request(self, job: Job, prompt: Sequence[int]) -> Request:
        chosen = self._settings
        drafted = self._draft is not None
        return Request(
            prompt=tuple(prompt),
            max_new_tokens=job.max_new_tokens,
            eos_token_ids=self._target.info.eos_token_ids,
            sampling=SamplingParams(chosen.temperature, chosen.top_k, chosen.top_p, chosen.min_p, job.seed),
            block_size=chosen.block_size if drafted else None,
            verify_length=chosen.verify_length if drafted else "auto",
            tree_budget=chosen.tree_budget if drafted else None,
        )

    def _answer(self, row: _Running, stats: RequestStats, reason: str) -> Answer:
        detokenize = getattr(self._target, "detokenize", None)
        return Answer(
            ask=row.job.ask.id,
            repeat=row.job.repeat,
            issued=row.issued,
            deliveries=tuple(row.deliveries),
            prompt_tokens=row.prompt,
            new_tokens=len(row.tokens),
            tokens=tuple(row.tokens),
            text=None if detokenize is None else detokenize(row.tokens),
            finish_reason=reason,
            drafting=None if self._draft is None else drafting(stats),
            notes={"plain_cycles": stats.plain_reasons} if stats.plain_reasons else {},
        )


def drafting(stats: RequestStats) -> Drafting:
    """The counters of a request of ours."""
    return Drafting(
        drafting_of(stats.acceptance_lengths).lengths,
        stats.verified,
        stats.accepted,
        tuple(stats.slot_verified),
        tuple(stats.slot_accepted),
    )


def drafted(bench: Workbench, options: Mapping[str, str]) -> EmbeddedSystem:
    """`--system dflash:...`; the options are settings."""
    resolved = bench.resolve(options, "dflash", DRAFTED)
    return EmbeddedSystem(
        bench.target(resolved),
        bench.draft(resolved),
        resolved.settings,
        {"kind": "dflash", "settings": in_force(resolved.settings, DRAFTED)},
    )


def plain(bench: Workbench, options: Mapping[str, str]) -> EmbeddedSystem:
    """`--system plain:...`; the options are settings, e.g. `fast=off`."""
    resolved = bench.resolve(options, "plain", PLAIN)
    return EmbeddedSystem(
        bench.target(resolved),
        None,
        resolved.settings,
        {"kind": "plain", "settings": in_force(resolved.settings, PLAIN)},
    )
