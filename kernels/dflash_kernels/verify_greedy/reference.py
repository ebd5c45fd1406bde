"""Reference of `verify_greedy`."""

import torch
from torch import Tensor

from dflash_kernels.argmax import argmax


def verify_greedy(tokens: Tensor, logits: Tensor, num_nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Count the matches before the first mismatch."""
    choice = argmax(logits)  # [B, S]
    slots = torch.arange(1, tokens.shape[1], device=tokens.device)
    matches = (tokens[:, 1:] == choice[:, :-1]) & (slots < num_nodes[:, None])  # [B, S - 1]
    return matches.cumprod(-1).sum(-1), choice
