"""The block drafter: DFlash v1, DFlash2 and DSpark over a context pool, as the decoder's `Drafter`."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from dflash_core.checkpoint.base import EMBEDDING, DraftCheckpoint
from dflash_core.drafter.assemble import chain_proposal, plain_proposal, tree_proposal
from dflash_core.drafter.base import DraftContext
from dflash_core.drafter.block_context import BlockContext
from dflash_core.drafter.confidence import ConfidenceHead
from dflash_core.drafter.guess import Chooser, Guess, Noise, candidates, guess
from dflash_core.drafter.heads import CandidateSelector, build_head
from dflash_core.drafter.hosted import HostedContext, HostedPool
from dflash_core.drafter.markov import MarkovHead
from dflash_core.drafter.network import DraftNetwork
from dflash_core.drafter.options import DraftVocab, as_dtype, samples
from dflash_core.drafter.pool import ContextPool, ContextRead
from dflash_core.drafter.shape import DraftShape
from dflash_core.drafter.weights import Weights
from dflash_core.errors import UnsupportedError
from dflash_core.fastpath import Fast, FastPath, enable_fast_path
from dflash_core.proposal import Proposal
from dflash_core.sampling import SamplingBatch, SamplingParams
from dflash_core.schedule.base import CyclePlan
from dflash_core.spec import DraftSpec
from dflash_core.target import TargetModel
from dflash_kernels.uniform import DRAFT, uniform


class BlockDrafter:
    """Proposes a block with one forward, from the taps of all committed positions.

    Matrix products: `network`, `head` and `selector` are `nn.Module`s whose every product is an `nn.Linear`.
    """

    name = "block"

    def __init__(
        self,
        checkpoint: DraftCheckpoint,
        target: TargetModel,
        *,
        draft_window: int | None = None,
        dtype: str | torch.dtype | None = None,
        context_dtype: str | torch.dtype | None = None,
        max_context_slots: int | None = None,
        proposal: str = "auto",
        draft_vocab: DraftVocab | None = None,
        fast: Fast | None = None,
    ) -> None:
        """
        Args:
            checkpoint: of a pair that has been checked (`dflash_core.checkpoint.pair`).
            target: lends embedding and head where the draft has none of its own.
            draft_window: every layer sees at most this many committed positions.
            dtype: of the network; the target's when `None`.
            context_dtype: of keys and values in the pool; the network's when `None`.
            max_context_slots: limit of the pool, in positions; `None` grows as needed.
            proposal: what is proposed at temperature above 0. "argmax" is the best token, verified as a point
                mass; "sample" is a sample, verified with its distribution; "auto" samples where a selector or
                a Markov head makes the samples fit each other, and takes the best token otherwise.
            draft_vocab: draft these target ids only (a number is that many lowest ids). Still lossless, and
                the draft's head becomes that much cheaper.
            fast: how few rows are computed on the CPU, see `enable_fast_path`; the target's when `None`.

        Raises:
            CheckpointError: a tensor is missing.
            SettingsError: an option makes no sense.
            UnsupportedError: a draft of a kind that this drafter does not do.
        """
        spec = checkpoint.spec
        device = target.info.device
        self.spec = spec
        self.block_size = spec.block_size
        self.taps = spec.taps
        dtype = as_dtype("dtype", dtype, target.info.dtype)
        self._context_dtype = as_dtype("context_dtype", context_dtype, dtype)
        self._draft_window = draft_window
        self._max_slots = max_context_slots
        self._samples = samples(proposal, spec)
        weights = Weights(checkpoint, dtype, device)
        self.network = DraftNetwork(checkpoint, dtype=dtype, device=device)
        self.head = build_head(checkpoint, target, weights, draft_vocab)
        self.selector = _chooser(spec, weights)
        self.confidence = (
            ConfidenceHead(spec.confidence, checkpoint.tensors, device) if spec.confidence else None
        )
        self._embed: Callable[[Tensor], Tensor] = target.embed
        if spec.owns_embedding:
            self._embed = partial(functional.embedding, weight=weights(EMBEDDING))
        parts = nn.ModuleList(part for part in (self.network, self.head, self.selector) if part is not None)
        done: FastPath = getattr(target, "fast", FastPath())
        self.fast = enable_fast_path(parts, fast or done.mode, frozen=True)

    def branches(self, sampling: SamplingParams) -> bool:
        """Whether a request may get a tree: trees are point masses, so not where tokens are sampled."""
        return sampling.temperature == 0 or not self._samples

    def start(self) -> BlockContext:
        """An empty context.

        Raises:
            SettingsError: draft_window or max_context_slots makes no sense.
        """
        pool = ContextPool(
            self.spec,
            draft_window=self._draft_window,
            dtype=self._context_dtype,
            device=self.network.device,
            max_slots=self._max_slots,
        )
        return BlockContext(self.network, pool)

    def host(self, num_slots: int) -> HostedPool:
        """A pool for an engine that numbers the slots itself, instead of `start`, `join` and `commit`.

        Args:
            num_slots: one more than the engine's largest slot number.

        Raises:
            SettingsError: draft_window makes no sense.
        """
        return HostedPool(self.network, num_slots, draft_window=self._draft_window, dtype=self._context_dtype)

    @torch.no_grad()
    def join(self, context: DraftContext, tokens: Sequence[int], taps: Tensor | None) -> None:
        """Append a row; see `Drafter.join`.

        Raises:
            ValueError: taps of another shape than [T, P * D].
        """
        _own(context).join(self._checked(taps, (len(tokens),)))

    @torch.no_grad()
    def commit(
        self,
        context: DraftContext,
        tokens: Sequence[Sequence[int]],
        taps: Tensor | None,
        nodes: Sequence[Sequence[int]],
    ) -> None:
        """Append what was committed; see `Drafter.commit`. The taps' memory may be reused afterwards.

        Raises:
            ValueError: taps of another shape than [B, N, P * D].
        """
        width = taps.shape[1] if taps is not None and taps.dim() == 3 else 0
        _own(context).commit(self._checked(taps, (len(nodes), width)), nodes)

    @torch.no_grad()
    def propose(
        self, anchors: Tensor, context: DraftContext, plan: CyclePlan, sampling: SamplingBatch
    ) -> Proposal:
        """Draft for all rows; see `Drafter.propose`.

        Rows of which nothing would be verified take no part in the forward. Trees are point masses; where a
        row asks for one, the chains of the others become trees of one branch and stay what they are.

        Raises:
            RequestError: the context pool is full.
        """
        shape = DraftShape.of(plan)
        if not len(shape.rows):
            return plain_proposal(anchors)
        read = _readable(context).read(None if shape.everyone else shape.rows)
        rows = shape.tensor(shape.rows, anchors.device)
        starts = anchors if shape.everyone else anchors[rows]
        hidden = self._hidden(starts, read, shape)
        sampled = self._samples and not sampling.greedy and not shape.trees.all()
        noise = _noise(sampling, rows, read, shape.depth) if sampled else None
        trees = bool(shape.trees.any())
        chosen = guess(hidden, self.head, self.selector, starts, noise) if sampled or not trees else None
        if chosen is not None and not trees:
            return chain_proposal(anchors, shape, rows, chosen, self._sure(hidden, starts, chosen))
        wide = candidates(hidden, self.head, self.selector, starts, int(shape.budgets.max()))
        return tree_proposal(anchors, shape, rows, wide, chosen)

    def _sure(self, hidden: Tensor, anchors: Tensor, chosen: Guess) -> Tensor | None:
        """The confidence [B, D'] of chains, where there is a head for it."""
        if self.confidence is None:
            return None
        before = None
        if isinstance(self.selector, MarkovHead):
            before = self.selector.rows(anchors, chosen.tokens)
        sure: Tensor = self.confidence(hidden, chosen.log_probs, before)
        return sure

    def _hidden(self, anchors: Tensor, read: ContextRead, shape: DraftShape) -> Tensor:
        """One forward over the whole planned blocks; [B, D', D] of the slots that predict what is wanted.

        A slot predicts its own token, the anchor's nothing; or, where `anchor_predicts`, the one after it.
        """
        early = int(self.spec.anchor_predicts)
        width, outputs = shape.width - early, shape.depth + 1 - early
        tokens = anchors.new_full((len(anchors), width), self.spec.mask_token_id)
        tokens[:, 0] = anchors
        positions = read.anchors[:, None] + torch.arange(width, device=anchors.device)
        lengths = None if shape.even else shape.tensor(shape.block_sizes - early, anchors.device)
        hidden: Tensor = self.network(self._embed(tokens), positions, read.zones, lengths, outputs=outputs)
        return hidden[:, 1 - early :]

    def _checked(self, taps: Tensor | None, leading: tuple[int, ...]) -> Tensor:
        expected = (*leading, self.spec.tap_width)
        if taps is None or tuple(taps.shape) != expected:
            got = None if taps is None else list(taps.shape)
            raise ValueError(
                f"taps are {got}; this draft needs {list(expected)} of blocks {list(self.taps)}."
            )
        return taps


def _chooser(spec: DraftSpec, weights: Weights) -> Chooser | None:
    if spec.selector is not None and spec.markov is not None:
        raise UnsupportedError(
            "A draft with a selector and a Markov head is not supported; keep one of them."
        )
    if spec.selector is not None:
        return CandidateSelector(spec.selector, weights)
    return None if spec.markov is None else MarkovHead(weights)


def _own(context: DraftContext) -> BlockContext:
    if not isinstance(context, BlockContext):
        raise TypeError(f"{type(context).__name__} is not a context of the block drafter.")
    return context


def _readable(context: DraftContext) -> BlockContext | HostedContext:
    return context if isinstance(context, HostedContext) else _own(context)


def _noise(sampling: SamplingBatch, rows: Tensor, read: ContextRead, depth: int) -> Noise:
    """A drafted token is drawn with the noise of its own position."""
    positions = read.anchors[:, None] + torch.arange(1, depth + 1, device=rows.device)
    return Noise(sampling.temperature[rows], uniform(sampling.seeds[rows], positions, DRAFT))
