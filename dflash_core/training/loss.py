"""The loss of drafted slots: cross entropy against what the target said, computed with its own head."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

from dflash_kernels.argmax import argmax
from dflash_kernels.topk import topk

Weighting = Literal["decay", "dpace"]

CHUNK = 256
"""Rows whose logits exist at a time: so few that they stay in a processor's cache between the passes."""

SMOOTHING = 0.5
"""Alpha of D-PACE: a confidence c counts as alpha + (1 - alpha) * c."""


def decay_weights(slots: int, gamma: float) -> Tensor:
    """[S - 1] weights `exp(-(k - 1) / gamma)` of the drafted slots k = 1, ..., S - 1 (DFlash, section 4)."""
    return torch.exp(-torch.arange(slots - 1, dtype=torch.float32) / gamma)


def dpace_weights(confidence: Tensor, there: Tensor) -> Tensor:
    """Weights from how sure the draft is of the true tokens, so that slots count by what they can still gain.

    Args:
        confidence: [..., S - 1] probabilities of the true tokens; 0 for those that the draft cannot say.
        there: [..., S - 1] bool, whether a slot exists; the text may end within a block.

    Returns:
        [..., S - 1]: for slot j the sum over i >= j of the products of smoothed confidences up to i, which is
        what acceptance beyond j - 1 is worth.
    """
    reached = (SMOOTHING + (1 - SMOOTHING) * confidence).cumprod(-1) * there
    return reached.flip(-1).cumsum(-1).flip(-1)


class HeadLoss(Function):
    """Weighted cross entropy through a frozen head, without ever holding all logits.

    The gradient with respect to the hidden states is computed along with the loss, chunk by chunk.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        labels: Tensor,
        weights: Tensor,
        keep: int,
        others: Tensor,
        other_weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """
        Args:
            hidden: [N, D]. head: [n, D], of the same dtype.
            labels: [N] int64, rows of the head; -1 where there is nothing to learn.
            weights: [N] float32; they are not differentiated.
            keep: K, how many of the best tokens of each row are to be returned.
            others, other_weights: [N, M] int64 and float32, more labels of each row, M may be 0. The cross
                entropy with a distribution is that with its tokens, each weighted by its probability.

        Returns:
            loss: scalar float32, the sum over rows and their labels of weight * cross entropy.
            log_probs: [N] float32 of `labels` (0 where there is none).
            right: [N] bool, whether the label is the best token.
            best: [N, K] int64, rows of the head, best first.
        """
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        log_probs = torch.zeros(len(hidden), device=hidden.device)
        right = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
        kept = torch.zeros(len(hidden), keep, dtype=torch.int64, device=hidden.device)
        gradient = torch.zeros_like(hidden)
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            there = labels[part] >= 0
            picked = labels[part].clamp(min=0)[:, None]
            logits = (hidden[part] @ head.t()).float()
            if keep:
                kept[part] = topk(logits, keep)[1]
            top = argmax(logits)
            logits.sub_(logits.gather(1, top[:, None]))
            chosen = logits.gather(1, picked)[:, 0]
            more = others[part].clamp(min=0)
            shares = torch.where(others[part] >= 0, other_weights[part], 0.0)
            chosen_more = logits.gather(1, more)
            right[part] = there & (top == picked[:, 0])
            logits.exp_()
            total = logits.sum(-1)
            log_probs[part] = torch.where(there, chosen - total.log(), 0.0)
            scale = torch.where(there, weights[part], 0.0)
            loss -= (scale * log_probs[part]).sum()
            loss -= (shares * (chosen_more - total.log()[:, None])).sum()
            logits.mul_(((scale + shares.sum(-1)) / total)[:, None])
            logits.scatter_add_(1, picked, -scale[:, None])
            logits.scatter_add_(1, more, -shares)
            gradient[part] = logits.to(hidden.dtype) @ head
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(log_probs, right, kept)
        return loss, log_probs, right, kept

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0].to(gradient.dtype), None, None, None, None, None, None


def head_loss(
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    weights: Tensor,
    keep: int = 0,
    others: Tensor | None = None,
    other_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `HeadLoss.forward`."""
    if others is None or other_weights is None:
        others, other_weights = labels.new_empty(len(labels), 0), weights.new_empty(len(labels), 0)
    found: tuple[Tensor, Tensor, Tensor, Tensor] = HeadLoss.apply(  # type: ignore[no-untyped-call]
        hidden, head, labels, weights, keep, others, other_weights
    )
    return found


def choice_loss(
    scores: Tensor, candidates: Tensor, labels: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted cross entropy of the choice among a slot's candidates, where the true token is one of them.

    Args:
        scores: [N, K] float32, differentiable.
        candidates: [N, K] int64, rows of the head. labels: [N] int64, -1 where there is nothing to learn.
        weights: [N] float32.

    Returns:
        loss: scalar float32.
        log_probs: [N] float32 of the labels; -inf where a label is no candidate, 0 where there is none.
        right: [N] bool, whether the label is the best candidate.
    """
    there = labels >= 0
    found = (candidates == labels[:, None]) & there[:, None]
    known = found.any(-1)
    chosen = scores.log_softmax(-1).masked_fill(~found, 0.0).sum(-1)
    right = found.gather(1, scores.argmax(-1, keepdim=True))[:, 0]
    loss = -(torch.where(known, weights, 0.0) * chosen).sum()
    return loss, chosen.detach().masked_fill(there & ~known, float("-inf")), right


def accepted(right: Tensor) -> Tensor:
    """Drafts [...] that would be accepted of each block, from which slots [..., S - 1] are right."""
    return right.long().cumprod(-1).sum(-1)
