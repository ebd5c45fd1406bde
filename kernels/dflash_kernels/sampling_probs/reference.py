"""Reference of `sampling_probs`."""

import torch
from torch import Tensor

from dflash_kernels.argmax.reference import argmax
from dflash_kernels.sampling_probs.candidates import Limits, best, keep, widths

TINY = torch.finfo(torch.float32).tiny


def sampling_probs(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    filtered: bool,
    max_top_k: int,
) -> Tensor:
    """Softmax first; then rows that have a filter are replaced by what is left of their best tokens."""
    batch, nodes, vocab = logits.shape
    greedy = temperature == 0
    scores = _scale(logits, temperature, greedy)
    probs = scores.softmax(-1)
    if not filtered:
        return probs
    top_k = top_k.masked_fill(top_k >= vocab, 0)
    off = greedy | ((top_k == 0) & (top_p >= 1) & (min_p == 0))
    off, *settings = (x[:, None].expand(-1, nodes).reshape(-1, 1) for x in (off, top_k, top_p, min_p))
    limits = Limits(*settings)
    left = _filter(scores.flatten(0, 1), probs.flatten(0, 1), limits, off, max_top_k)
    return left.view(batch, nodes, vocab)


def may_look(x: Tensor) -> bool:
    """Whether intermediate results may decide what is computed next.

    On a CPU that costs nothing. Elsewhere the host would have to wait for the device, so that all rows are
    rather sorted whole.
    """
    return x.is_cpu


def _scale(logits: Tensor, temperature: Tensor, greedy: Tensor) -> Tensor:
    """(logits - maximum) / temperature in float32.

    At temperature 0 all but the first maximum are pushed down before they are divided by next to nothing.
    """
    first = argmax(logits)[..., None]
    best = logits.gather(-1, first).float()
    push = greedy[:, None, None] * (1 + best.abs() / 1024)  # large enough to be seen beside the maximum
    scores = (logits.float() - (best + push)).scatter_(-1, first, 0.0)
    return scores.div_(temperature.float().clamp(min=TINY)[:, None, None])


def _filter(scores: Tensor, probs: Tensor, limits: Limits, off: Tensor, max_top_k: int) -> Tensor:
    """Apply the limits to R rows; one that needs more tokens than are looked at waits for the next width."""
    count, vocab = scores.shape
    if not may_look(scores):
        values, ids = best(scores, vocab)
        weights, _ = keep(values, probs.gather(-1, ids), limits, complete=True)
        return torch.where(off, probs, torch.zeros_like(probs).scatter_(-1, ids, weights))
    rows = (~off[:, 0]).nonzero()[:, 0]
    for width in widths(vocab, max_top_k):
        if len(rows) == 0:
            break
        values, ids = best(scores if len(rows) == count else scores[rows], width)
        weights, enough = keep(values, probs[rows[:, None], ids], limits.of(rows), complete=width == vocab)
        ready = rows[enough]
        probs[ready] = 0
        probs[ready[:, None], ids[enough]] = weights[enough]
        rows = rows[~enough]
    return probs
