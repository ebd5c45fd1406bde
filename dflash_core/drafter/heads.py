"""From the network's hidden states to logits of draft tokens."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dflash_core.checkpoint.base import HEAD, DraftCheckpoint
from dflash_core.drafter.options import DraftVocab, as_token_ids
from dflash_core.drafter.weights import Weights, frozen, linear
from dflash_core.errors import SettingsError
from dflash_core.spec import DraftSpec, SelectorSpec
from dflash_core.target import TargetModel
from dflash_kernels.selector_pairs import selector_pairs
from dflash_kernels.selector_walk import selector_walk
from dflash_kernels.topk import topk

COPIED_ROWS = 64
"""Hidden dimensions read from a target's head at a time."""


class DraftHead(nn.Module):
    """Scaled and capped logits over the draft vocabulary, which may be a part of the target's."""

    ids: Tensor | None

    def __init__(
        self,
        spec: DraftSpec,
        head: nn.Linear | Callable[[Tensor], Tensor],
        dtype: torch.dtype,
        ids: Tensor | None = None,
    ) -> None:
        """
        Args:
            head: the draft's own head, or the target's.
            dtype: that the head takes.
            ids: [n] int64, the target ids of the head's n rows; `None` when row i is token i.
        """
        super().__init__()
        self.head = head
        self.register_buffer("ids", ids, persistent=False)
        self._dtype = dtype
        self._multiplier = spec.output_multiplier
        self._cap = spec.final_logit_softcapping

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., D] to float32 logits [..., n]."""
        logits: Tensor = self.head(hidden.to(self._dtype)).float()
        if self._multiplier != 1:
            logits = logits * self._multiplier
        if self._cap is not None:
            logits = (logits / self._cap).tanh() * self._cap
        return logits

    def tokens(self, rows: Tensor) -> Tensor:
        """Rows of the head to target ids."""
        return rows if self.ids is None else self.ids[rows]

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Logits and target ids [..., count] of the best tokens, or of all where there are not so many.

        Args:
            logits: [..., n], of this head.
        """
        values, rows = topk(logits, min(count, logits.shape[-1]))
        return values, self.tokens(rows)


def build_head(
    checkpoint: DraftCheckpoint, target: TargetModel, weights: Weights, draft_vocab: DraftVocab | None
) -> DraftHead:
    """The draft's own head or the target's, restricted to `draft_vocab` where that is given.

    Raises:
        SettingsError: draft_vocab makes no sense, or shares nothing with a draft's own reduced vocabulary.
    """
    spec = checkpoint.spec
    wanted = None if draft_vocab is None else as_token_ids(draft_vocab, spec.vocab_size)
    if spec.owns_head:
        weight = weights(HEAD)
        ids = checkpoint.tensors["d2t"].to(weights.device) if "d2t" in checkpoint.tensors else None
        if wanted is not None:
            ids = torch.arange(len(weight), device=weight.device) if ids is None else ids
            rows = torch.isin(ids, wanted.to(ids.device)).nonzero()[:, 0]
            if not len(rows):
                raise SettingsError(
                    "draft_vocab has no token in common with the draft's own vocabulary (d2t)."
                )
            weight, ids = weight[rows], ids[rows]
        return DraftHead(spec, linear(weight), weights.dtype, ids)
    dtype = target.info.dtype
    if wanted is None:
        return DraftHead(spec, target.head, dtype)
    wanted = wanted.to(weights.device)
    copied = copy_rows(target.head, wanted, spec.hidden_size, dtype, weights.device)
    return DraftHead(spec, copied, dtype, wanted)


@torch.no_grad()
def copy_rows(
    head: Callable[[Tensor], Tensor], rows: Tensor, width: int, dtype: torch.dtype, device: torch.device
) -> nn.Linear:
    """Some rows of a linear head of which only the product is known: unit vectors read its columns out.

    Args:
        head: [n, D] to [n, V], affine.
        rows: [r] int64.
        width: D.
    """
    bias = head(torch.zeros(1, width, dtype=dtype, device=device))[0, rows]
    units = torch.eye(width, dtype=dtype, device=device)
    columns = [head(part)[:, rows] - bias for part in torch.split(units, COPIED_ROWS)]
    return linear(torch.cat(columns).t().contiguous(), bias if bool(bias.any()) else None)


class CandidateSelector(nn.Module):
    """DFlash2's choice among the best candidates of every slot, given the token before it."""

    def __init__(self, selector: SelectorSpec, weights: Weights) -> None:
        super().__init__()
        self.top_k = selector.top_k
        self.hidden_projection = linear(weights("candidate_selector.hidden_projection.weight"))
        self.predecessors = frozen(weights("candidate_selector.predecessor_codebook"))
        self.successors = frozen(weights("candidate_selector.successor_codebook"))

    def forward(
        self,
        hidden: Tensor,
        logits: Tensor,
        head: DraftHead,
        anchors: Tensor,
        temperature: Tensor | None,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Walk from the anchors; see `dflash_kernels.selector_walk`.

        Args:
            hidden: [B, D', D], the drafted slots. logits: [B, D', n], theirs.
            temperature, uniforms: [B] and [B, D'], or `None` to walk greedily.

        Returns:
            ids, scores: [B, D', K], the candidates and how they were scored.
            picks: [B, D'] int64, indices of candidates.
        """
        unary, ids = head.best(logits, self.top_k)
        picks, scores = selector_walk(
            unary,
            ids,
            self.hidden_projection(hidden),
            self.predecessors,
            self.successors,
            anchors,
            temperature,
            uniforms,
        )
        return ids, scores, picks

    def pairs(
        self, hidden: Tensor, logits: Tensor, head: DraftHead, anchors: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Score every candidate after every candidate before it; see `dflash_kernels.selector_pairs`.

        Args:
            hidden: [B, D', D], the drafted slots. logits: [B, D', n], theirs.

        Returns:
            ids: [B, D', K], the candidates.
            scores: [B, D', K, K]; row a of a slot comes after candidate a of the slot before.
        """
        unary, ids = head.best(logits, self.top_k)
        projected = self.hidden_projection(hidden)
        return ids, selector_pairs(unary, ids, projected, self.predecessors, self.successors, anchors)
