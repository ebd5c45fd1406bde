"""Specification of `candidate_probs`."""

import torch
from torch import Tensor


def candidate_probs(scores: Tensor, temperature: Tensor) -> Tensor:
    """Softmax at each request's temperature; all mass on the best candidate at temperature 0.

    Args:
        scores: [B, ..., K] floats.
        temperature: [B] float32, at least 0.

    Returns:
        [B, ..., K] float32; rows sum to 1.
    """
    temperature = temperature.view(-1, *[1] * (scores.dim() - 1))
    greedy = temperature == 0
    scores = scores.float()
    soft = ((scores - scores.amax(-1, keepdim=True)) / torch.where(greedy, 1.0, temperature)).softmax(-1)
    best = torch.zeros_like(soft).scatter(-1, scores.argmax(-1, keepdim=True), 1.0)
    return torch.where(greedy, best, soft)
