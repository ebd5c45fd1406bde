"""The loss of drafted slots: cross entropy against what the target said, computed with its own head."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

Weighting = Literal["decay", "dpace"]

CHUNK = 256
"""Rows whose logits exist at a time: so few that they stay in a processor's cache between the passes."""

SMOOTHING = 0.5
"""Alpha of D-PACE: a confidence c counts as alpha + (1 - alpha) * c."""


def decay_weights(slots: int, gamma: float) -> Tensor:
    """[S - 1] weights `exp(-(k - 1) / gamma)` of the drafted slots k = 1, ..., S - 1 (DFlash, section 4)."""
    return torch.exp(-torch.arange(slots - 1, dtype=torch.float32) / gamma)


def dpace_weights(confidence: Tensor) -> Tensor:
    """Weights from how sure the draft is of the true tokens, so that slots count by what they can still gain.

    Args:
        confidence: [..., S - 1] probabilities of the true tokens.

    Returns:
        [..., S - 1]: for slot j the sum over i >= j of the products of smoothed confidences up to i, which is
        what acceptance beyond j - 1 is worth.
    """
    reached = (SMOOTHING + (1 - SMOOTHING) * confidence).cumprod(-1)
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
        others: Tensor,
        other_weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """
        Args:
            hidden: [N, D]. head: [n, D], of the same dtype.
            labels: [N] int64, rows of the head; -1 where there is nothing to learn.
            weights: [N] float32; they are not differentiated.
            others, other_weights: [N, M] int64 and float32, more labels of each row, M may be 0. The cross
                entropy with a distribution is that with its tokens, each weighted by its probability.

        Returns:
            loss: scalar float32, the sum over rows and their labels of weight * cross entropy.
            log_probs: [N] float32 of `labels` (0 where there is none).
            right: [N] bool, whether the label is the best token.
        """
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        log_probs = torch.zeros(len(hidden), device=hidden.device)
        right = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
        gradient = torch.zeros_like(hidden)
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            there = labels[part] >= 0
            picked = labels[part].clamp(min=0)[:, None]
            logits = (hidden[part] @ head.t()).float()
            best, top = logits.max(-1)
            logits.sub_(best[:, None])
            chosen = logits.gather(1, picked)[:, 0]
            more = others[part].clamp(min=0)
            shares = torch.where(others[part] >= 0, other_weights[part], 0.0)
            chosen_more = logits.gather(1, more)
            logits.exp_()
            total = logits.sum(-1)
            log_probs[part] = torch.where(there, chosen - total.log(), 0.0)
            right[part] = there & (top == picked[:, 0])
            scale = torch.where(there, weights[part], 0.0)
            loss -= (scale * log_probs[part]).sum()
            loss -= (shares * (chosen_more - total.log()[:, None])).sum()
            logits.mul_(((scale + shares.sum(-1)) / total)[:, None])
            logits.scatter_add_(1, picked, -scale[:, None])
            logits.scatter_add_(1, more, -shares)
            gradient[part] = logits.to(hidden.dtype) @ head
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(log_probs, right)
        return loss, log_probs, right

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0].to(gradient.dtype), None, None, None, None, None


def head_loss(
    hidden: Tensor,
    head: Tensor,
    labels: Tensor,
    weights: Tensor,
    others: Tensor | None = None,
    other_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `HeadLoss.forward`."""
    if others is None or other_weights is None:
        others, other_weights = labels.new_empty(len(labels), 0), weights.new_empty(len(labels), 0)
    found: tuple[Tensor, Tensor, Tensor] = HeadLoss.apply(  # type: ignore[no-untyped-call]
        hidden, head, labels, weights, others, other_weights
    )
    return found


def accepted(right: Tensor) -> Tensor:
    """Drafts [...] that would be accepted of each block, from which slots [..., S - 1] are right."""
    return right.long().cumprod(-1).sum(-1)
