"""The cycle: plan, draft, verify, commit; requests join and leave between cycles."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch

from dflash_core.drafter.base import DraftContext, Drafter
from dflash_core.errors import RequestError, UnsupportedError
from dflash_core.processors import apply_processors
from dflash_core.proposal import Proposal
from dflash_core.request import Detokenize, Request, end_of
from dflash_core.rollback.base import RollbackPolicy
from dflash_core.sampling import SamplingBatch, SamplingParams, sampling_batch, whole
from dflash_core.schedule.base import CyclePlan, RequestView, Schedule
from dflash_core.stats import PhaseSeconds, RequestStats, Stats
from dflash_core.target import TargetModel, TargetState
from dflash_core.tree import TokenTree, chain
from dflash_core.verdict import Verdict
from dflash_core.verify.base import Verifier


@dataclass(frozen=True)
class Delta:
    """Tokens that a request gained in one step, and why it is finished, if it is."""

    id: int
    tokens: tuple[int, ...]
    finish_reason: str | None = None


@dataclass
class _Row:
    """A request being decoded; its place in the list is its row in the target state and the draft context."""

    id: int
    request: Request
    stats: RequestStats
    generated: list[int] = field(default_factory=list)

    @property
    def committed(self) -> list[int]:
        return [*self.request.prompt, *self.generated]

    @property
    def anchor_position(self) -> int:
        return len(self.request.prompt) + len(self.generated) - 1


class Decoder:
    """Decodes requests together, over a target that it drives.

    Not thread-safe: one thread calls `add`, `step` and `cancel`.
    """

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter | None,
        *,
        verifier: Verifier,
        schedule: Schedule,
        crop: RollbackPolicy,
        gather: RollbackPolicy,
        detokenize: Detokenize | None = None,
        max_batch: int = 8,
    ) -> None:
        """
        Args:
            drafter: `None` decodes plainly.
            crop: policy for cycles whose proposals are chains. gather: for those with trees.
            detokenize: text of token ids; needed for stop strings.
            max_batch: requests decoded together; further ones wait.
        """
        if whole("max_batch", max_batch) < 1:
            raise RequestError(f"max_batch is {max_batch}; it must be at least 1.")
        self._target = target
        self._drafter = drafter
        self._verifier = verifier
        self._schedule = schedule
        self._crop = crop
        self._gather = gather
        self._detokenize = detokenize
        self._max_batch = max_batch
        self._state: TargetState = target.start(drafter.taps if drafter else ())
        self._context: DraftContext | None = drafter.start() if drafter else None
        self._waiting: deque[_Row] = deque()
        self._rows: list[_Row] = []
        self._stats: list[RequestStats] = []
        self._seconds = PhaseSeconds()
        self._cycles = 0

    @property
    def idle(self) -> bool:
        """Whether no request is running or waiting."""
        return not self._rows and not self._waiting

    @property
    def stats(self) -> Stats:
        """Counters so far, requests in the order they were added."""
        return Stats(tuple(self._stats), self._seconds, self._cycles)

    def add(self, request: Request) -> int:
        """Queue a request; returns its number.

        Raises:
            RequestError: it does not fit the target.
            UnsupportedError: it asks for a tree on a target that cannot verify one.
        """
        self._check(request)
        row = _Row(len(self._stats), request, RequestStats(prompt_tokens=len(request.prompt)))
        self._stats.append(row.stats)
        self._waiting.append(row)
        return row.id

    def cancel(self, id: int) -> bool:
        """Drop a request, whether it waits or runs; says whether there was one of that number."""
        for row in [*self._waiting, *self._rows]:
            if row.id == id:
                row.stats.finish_reason = "cancelled"
                self._waiting = deque(r for r in self._waiting if r is not row)
                self._keep([r is not row for r in self._rows])
                return True
        return False

    @torch.inference_mode()
    def step(self) -> list[Delta]:
        """Admit waiting requests, then run one cycle over all that are running."""
        deltas = self._admit()
        if self._rows:
            deltas += self._cycle()
        return deltas

    def _check(self, request: Request) -> None:
        info = self._target.info
        positions = len(request.prompt) + request.max_new_tokens
        if positions > info.max_positions:
            raise RequestError(
                f"The prompt has {len(request.prompt)} tokens and max_new_tokens is "
                f"{request.max_new_tokens}, but {info.name} takes {info.max_positions} positions in all."
            )
        worst = max(request.prompt)
        if min(request.prompt) < 0 or worst >= info.vocab_size:
            raise RequestError(
                f"The prompt has a token id that {info.name} does not know (0 to {info.vocab_size - 1})."
            )
        if self._drafter is not None and isinstance(request.tree_budget, int) and not info.trees:
            raise UnsupportedError(
                f"{info.name} cannot verify trees (its recurrent layers follow one branch only); "
                "leave tree_budget out."
            )

    def _admit(self) -> list[Delta]:
        deltas = []
        while self._waiting and len(self._rows) < self._max_batch:
            row = self._waiting.popleft()
            begin = perf_counter()
            deltas.append(self._prefill(row))
            self._seconds.prefill += perf_counter() - begin
        return deltas

    def _prefill(self, row: _Row) -> Delta:
        prompt = row.request.prompt
        output = self._state.prefill(prompt)
        self._rows.append(row)
        if self._drafter is not None and self._context is not None:
            taps = None if output.taps is None else output.taps[0]
            self._drafter.join(self._context, prompt, taps)
        device = output.logits.device
        last = torch.tensor([[prompt[-1]]], device=device)
        tree = chain(last, torch.ones(1, dtype=torch.int64, device=device))
        sampling = sampling_batch([row.request.sampling], [len(prompt) - 1], device)
        logits = apply_processors(tree, output.logits, [prompt], [row.request.processors])
        verdict = self._verifier.verify(Proposal(tree), logits, sampling)
        token = int(verdict.tokens[0, 0])
        count, reason = end_of(row.request, [], [token], self._detokenize)
        row.generated.append(token)
        row.stats.new_tokens += count
        row.stats.finish_reason = reason
        if reason is not None:
            self._keep([r is not row for r in self._rows])
        return Delta(row.id, (token,), reason)

    def _cycle(self) -> list[Delta]:
        begin = perf_counter()
        views = [self._view(row) for row in self._rows]
        anchors = [row.generated[-1] for row in self._rows]
        plan = self._schedule.plan(views) if self._drafter else plain(len(views))
        planned = perf_counter()
        sampling = self._sampling()
        proposal = self._propose(anchors, plan, sampling)
        drafted = perf_counter()
        policy = self._crop if proposal.tree.is_chain else self._gather
        output = self._state.verify(proposal.tree, policy.recording)
        verdict = self._verifier.verify(proposal, self._process(proposal.tree, output.logits), sampling)
        accepted, tokens, nodes = read(verdict, proposal.tree.ranks)
        counts = [len(ranks) for ranks in accepted]
        verified = perf_counter()
        deltas = [self._advance(row, index, plan, tokens[index]) for index, row in enumerate(self._rows)]
        running = [delta.finish_reason is None for delta in deltas]
        if any(running):
            rollback = policy.plan(proposal.tree, verdict, [count + 1 for count in counts])
            self._state.commit(rollback if any(map(_scattered, nodes)) else replace(rollback, gather=None))
            if self._drafter is not None and self._context is not None:
                committed = [[anchor, *new[:-1]] for anchor, new in zip(anchors, tokens, strict=True)]
                self._drafter.commit(self._context, committed, output.taps, nodes)
        self._keep(running)
        seconds = PhaseSeconds(
            plan=planned - begin,
            draft=drafted - planned,
            verify=verified - drafted,
            commit=perf_counter() - verified,
        )
        self._seconds.add(seconds)
        self._cycles += 1
        self._schedule.observe(views, plan, accepted, seconds)
        return deltas

    def _view(self, row: _Row) -> RequestView:
        request = row.request
        block = 1 if self._drafter is None else request.block_size or self._drafter.block_size
        return RequestView(
            id=row.id,
            context=row.anchor_position,
            remaining=request.max_new_tokens - len(row.generated),
            block_size=block,
            verify_length=request.verify_length,
            tree_budget=None
            if request.tree_budget == "auto" and not self._branches(request)
            else request.tree_budget,
        )

    def _branches(self, request: Request) -> bool:
        """Whether target, drafter and rollback can do a tree; one that records states follows one branch."""
        can: Callable[[SamplingParams], bool] | None = getattr(self._drafter, "branches", None)
        follows = self._target.info.trees and self._gather.recording == "none"
        return follows and can is not None and can(request.sampling)

    def _sampling(self) -> SamplingBatch:
        params = [row.request.sampling for row in self._rows]
        return sampling_batch(params, [row.anchor_position for row in self._rows], self._target.info.device)

    def _propose(self, anchors: Sequence[int], plan: CyclePlan, sampling: SamplingBatch) -> Proposal:
        tokens = torch.tensor(anchors, device=self._target.info.device)
        if self._drafter is None or self._context is None or not plan.drafts:
            return Proposal(chain(tokens[:, None], torch.ones_like(tokens)))
        return self._drafter.propose(tokens, self._context, plan, sampling)

    def _process(self, tree: TokenTree, logits: torch.Tensor) -> torch.Tensor:
        processors = [row.request.processors for row in self._rows]
        if not any(processors):
            return logits
        prefixes = [row.committed if row.request.processors else () for row in self._rows]
        return apply_processors(tree, logits, prefixes, processors)

    def _advance(self, row: _Row, index: int, plan: CyclePlan, tokens: Sequence[int]) -> Delta:
        count, reason = end_of(row.request, row.generated, tokens, self._detokenize)
        if plan.block_sizes[index] == 1:
            row.stats.record_plain(plan.reasons[index])
        else:
            verified = plan.verified[index]
            row.stats.record(
                drafted=plan.block_sizes[index] - 1,
                verified=verified,
                depth=min(plan.verify_lengths[index] - 1, verified),
                accepted=len(tokens) - 1,
                produced=count,
            )
        row.generated += tokens[:count]
        row.stats.finish_reason = reason
        return Delta(row.id, tuple(tokens[:count]), reason)

    def _keep(self, running: Sequence[bool]) -> None:
        if all(running):
            return
        rows = close_ranks(running)
        self._rows = [self._rows[index] for index in rows]
        self._state.keep(rows)
        if self._context is not None:
            self._context.keep(rows)


def close_ranks(running: Sequence[bool]) -> list[int]:
    """The rows that still run, the last ones moved into the gaps: few rows of a cache change their place."""
    count = sum(running)
    last = [index for index in range(count, len(running)) if running[index]]
    return [index if running[index] else last.pop() for index in range(count)]


def _scattered(nodes: Sequence[int]) -> bool:
    """Whether a path leaves the front of its block, so that something has to move."""
    return nodes[-1] != len(nodes) - 1


def plain(requests: int) -> CyclePlan:
    """The plan of a decoder that has no drafter."""
    return CyclePlan((1,) * requests, (1,) * requests, (None,) * requests, (None,) * requests)


def read(
    verdict: Verdict, ranks: torch.Tensor | None
) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Bring a verdict to the host: the one device synchronisation of a cycle.

    Args:
        ranks: of the tree's nodes, see `TokenTree`.

    Returns:
        accepted: per request the ranks of its accepted drafts.
        tokens: per request its accepted drafts and the bonus.
        nodes: per request the root and its accepted nodes.
    """
    width = verdict.tokens.shape[1]
    parts = [verdict.accepted[:, None], verdict.tokens, verdict.nodes]
    if ranks is not None:
        parts.append(ranks.gather(1, verdict.nodes.clamp(min=0)))
    rows = torch.cat(parts, 1).tolist()
    ends = [row[0] + 2 for row in rows]
    tokens, nodes, placed = (
        [row[1 + at * width : end + at * width] for row, end in zip(rows, ends, strict=True)]
        for at in (0, 1, 1 if ranks is None else 2)
    )
    return [row[1:] for row in placed], tokens, nodes
