"""The speculative worker: SGLang's batches in, the core's cycle, SGLang's results out."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.runtime_context import get_observability, get_parallel, get_spec
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from torch import Tensor

from dflash_backends.sglang.cycle import Cycle, Drafting
from dflash_backends.sglang.first_token import FirstToken
from dflash_backends.sglang.layout import Kept, Nodes, kept_by
from dflash_backends.sglang.metrics import Counters, Laps
from dflash_backends.sglang.options import worker_settings
from dflash_backends.sglang.state import Anchors
from dflash_backends.sglang.target import SGLangTarget, tap_order
from dflash_backends.sglang.verification import adjust, record_logprobs
from dflash_core.drafter.hosted import HostedPool
from dflash_core.verdict import Verdict

logger = logging.getLogger(__name__)


class DFlashCoreWorker(BaseSpecWorker):
    """One a scheduler process. It owns the draft and its context; slots and requests are SGLang's."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        super().__init__()
        self._target_worker = target_worker
        self._runner = target_worker.model_runner
        self._device = torch.device(self._runner.device)
        # what SGLang was given is in `server_args`; what became of it is here
        resolved = get_spec()
        settings = worker_settings(resolved, get_parallel().tp_size)
        target = SGLangTarget(self._runner)
        # every rank runs the same cycles, so one counts them
        counted = get_observability().enable_metrics and get_parallel().tp_rank == 0
        seed = int(target_worker.random_seed)
        self._cycle = Cycle(settings, target, seed, Counters() if counted else None)
        self._drafter = self._cycle.drafter
        self._first = FirstToken(seed)
        self._first.install(self._runner.sampler)
        target.capture(self._drafter.taps)
        self._tap_order = tap_order(self._drafter.taps, target.info.hidden_size, self._device)
        self._reserved = int(resolved.speculative_num_draft_tokens)
        self._pool: HostedPool | None = None
        logger.info(
            "DFLASH_CORE: draft %s, block size %d, up to %d nodes a request verified at once.",
            settings.draft,
            self._cycle.block_size,
            self._reserved,
        )

    @property
    def draft_worker(self) -> None:
        """There is no second model runner."""
        return None

    def alloc_memory_pool(
        self,
        memory_pool_config: Any = None,
        req_to_token_pool: Any = None,
        token_to_kv_pool_allocator: Any = None,
    ) -> None:
        """Called once SGLang's pools exist: the draft's context has as many slots as the target's."""
        self._table: Tensor = self._runner.req_to_token_pool.req_to_token
        self._allocator = self._runner.token_to_kv_pool_allocator
        self._pool = self._drafter.host(int(self._allocator.size + self._allocator.page_size))
        logger.info("DFLASH_CORE: %.1f MiB of draft context.", self._pool.nbytes / 2**20)

    def forward_batch_generation(
        self,
        batch: Any,
        on_publish: Callable[[Tensor], None] | None = None,
        pp_proxy_tensors: Any = None,
        **_: Any,
    ) -> GenerationBatchResult:
        """One step of SGLang's scheduler: prompts (or pieces of them), or one cycle of running requests."""
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return self._prefill(batch, on_publish)
        return self._decode(batch, on_publish)

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """SGLang has read the acceptance lengths; the schedule learns from them."""
        self._cycle.observe(num_correct_drafts_per_req)

    @torch.no_grad()
    def _prefill(self, batch: Any, on_publish: Callable[[Tensor], None] | None) -> GenerationBatchResult:
        self._first.requests = batch.reqs
        result = self._target_worker.forward_batch_generation(
            batch, capture_hidden_mode=CaptureHiddenMode.FULL
        )
        starts, counts = batch.prefix_lens, batch.extend_lens
        positions = torch.cat(
            [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        ).to(self._device)
        self._context().write(
            self._taps(result.logits_output)[: len(positions)], positions, batch.out_cache_loc.long()
        )
        result.new_seq_lens = batch.seq_lens
        result.next_draft_input = Anchors(result.next_token_ids.long())
        if on_publish is not None:
            on_publish(batch.seq_lens)
        return result

    @torch.no_grad()
    def _decode(self, batch: Any, on_publish: Callable[[Tensor], None] | None) -> GenerationBatchResult:
        laps = Laps()
        lengths = batch.seq_lens.long()
        host = (batch.seq_lens if batch.seq_lens_cpu is None else batch.seq_lens_cpu).tolist()
        rows = self._table[batch.req_pool_indices.long(), : max(host) + self._reserved].long()
        context = self._context().rows(rows, host)
        drafting = self._cycle.draft(
            batch.reqs, batch.spec_info.tokens, context, lengths, self._width(), laps
        )
        window = rows.gather(1, drafting.nodes.reserved)
        with laps.phase("target"):
            output, graph = self._verify(batch, drafting.nodes, window)
        with laps.phase("verify"):
            logits = output.next_token_logits
            logits = logits.view(len(host), drafting.nodes.width, -1)[:, : drafting.proposal.tree.width]
            logits = adjust(batch, drafting.proposal.tree, logits)
            verdict = self._cycle.verify(drafting, logits)
        kept = self._settle(drafting, verdict, window)
        with laps.phase("draft"):
            taps = self._taps(output).index_select(0, kept.rows)
            self._context().write(taps, kept.positions, kept.target)
        if batch.return_logprob:
            record_logprobs(batch, output, logits, verdict)
        result = self._result(batch, drafting, verdict, output, graph, on_publish)
        self._cycle.done(drafting, laps)
        return result

    def _verify(self, batch: Any, nodes: Nodes, window: Tensor) -> tuple[Any, bool]:
        """Run the target over all nodes."""
        batch.out_cache_loc = window.flatten()
        verify = DFlashVerifyInput(
            draft_token=nodes.tokens,
            positions=nodes.positions,
            draft_token_num=nodes.width,
            # what SGLang asks before it makes a mask of its own; its backends ask for the mask itself, those
            # that `complete` lets trees through to
            topk=1 if nodes.mask is None else 2,
            custom_mask=nodes.mask,
            capture_hidden_mode=CaptureHiddenMode.FULL,
        )
        forward, _ = verify.prepare_for_verify(batch, self._target_worker)
        result = self._target_worker.forward_batch_generation(
            batch=None, forward_batch=forward, is_verify=True, skip_attn_backend_init=True
        )
        return result.logits_output, bool(result.can_run_cuda_graph)

    def _settle(self, drafting: Drafting, verdict: Verdict, window: Tensor) -> Kept:
        """Bring the target's accepted nodes to their places."""
        plan = self._cycle.rollback(drafting.proposal.tree, verdict)
        kept = kept_by(verdict, window, drafting.nodes.reserved)
        if plan.gather is not None:
            source = window.flatten().index_select(0, kept.rows)
            self._allocator.get_kvcache().move_kv_cache(kept.target, source)
        return kept

    def _result(
        self,
        batch: Any,
        drafting: Drafting,
        verdict: Verdict,
        output: Any,
        graph: bool,
        on_publish: Callable[[Tensor], None] | None,
    ) -> GenerationBatchResult:
        bonus = verdict.tokens.gather(1, verdict.accepted[:, None])[:, 0]
        produced = verdict.accepted + 1
        new_lengths = batch.seq_lens + produced
        if on_publish is not None:
            on_publish(new_lengths)
        return GenerationBatchResult(
            logits_output=output,
            next_token_ids=verdict.tokens.flatten(),
            accept_lens=produced.to(torch.int32),
            can_run_cuda_graph=graph,
            new_seq_lens=new_lengths,
            next_draft_input=Anchors(bonus),
            speculative_num_draft_tokens=drafting.nodes.width,
            speculative_output_stride=verdict.tokens.shape[1],
        )

    def _taps(self, output: Any) -> Tensor:
        """Taps [rows, P * D] in the draft's order, taken from SGLang's output: users must not see them."""
        taps: Tensor = output.hidden_states
        output.hidden_states = None
        return taps if self._tap_order is None else taps.index_select(1, self._tap_order)

    def _width(self) -> int | None:
        """Nodes a request that the target's forward must have; `None` where it is free.

        Graphs are captured for one width, and SGLang's GPU attention plans for the one in its arguments.
        """
        return None if self._device.type == "cpu" else self._reserved

    def _context(self) -> HostedPool:
        if self._pool is None:
            raise RuntimeError("SGLang ran a batch before it had allocated its pools.")
        return self._pool
