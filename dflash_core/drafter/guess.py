"""From hidden states of drafted slots to tokens, one token a slot or several candidates a slot."""

from dataclasses import dataclass

from torch import Tensor

from dflash_core.drafter.heads import CandidateSelector, DraftHead
from dflash_core.drafter.markov import MarkovHead
from dflash_core.proposal import DraftDistribution
from dflash_kernels.argmax import argmax
from dflash_kernels.candidate_probs import candidate_probs
from dflash_kernels.draw import draw

Chooser = CandidateSelector | MarkovHead
"""What makes the tokens of a block fit each other."""

SAMPLED_CANDIDATES = 64
"""Tokens a slot that an independent head's samples are drawn from."""


@dataclass(frozen=True)
class Noise:
    """What samples are drawn with.

    Attributes:
        temperature: [B] float32; rows at 0 are greedy.
        uniforms: [B, D'] float64 in [0, 1), one a drafted slot.
    """

    temperature: Tensor
    uniforms: Tensor


@dataclass(frozen=True)
class Guess:
    """One token for each of the D' drafted slots.

    Attributes:
        tokens: [B, D'] int64.
        log_probs: [B, D'] float32, at temperature 1.
        distribution: what the token of each slot was drawn from (row d is slot d's); `None` for a point mass.
    """

    tokens: Tensor
    log_probs: Tensor
    distribution: DraftDistribution | None


@dataclass(frozen=True)
class Candidates:
    """Several tokens for each of the D' drafted slots, as `dflash_core.tree.best_first` takes them.

    Attributes:
        log_probs: [B, D', K] float32, at temperature 1, best first; with a `choice` [B, D', C, K], after each
            candidate of the slot before.
        ids: [B, D', K] int64; with a `choice` [B, D', C].
        choice: [B, D', C, K] int64, which of the C candidates each entry is, where that depends on the
            candidate before; else `None`.
    """

    log_probs: Tensor
    ids: Tensor
    choice: Tensor | None = None


def guess(
    hidden: Tensor, head: DraftHead, selector: Chooser | None, anchors: Tensor, noise: Noise | None
) -> Guess:
    """One token a slot: sampled where there is noise, else the best.

    Args:
        hidden: [B, D', D]. anchors: [B] int64.
    """
    logits = head(hidden)
    if selector is not None:
        return _selected(hidden, logits, head, selector, anchors, noise)
    total = logits.logsumexp(-1)
    if noise is None:
        best = argmax(logits)[..., None]
        log_probs = logits.gather(-1, best)[..., 0] - total
        return Guess(head.tokens(best[..., 0]), log_probs, None)
    scores, ids = head.best(logits, SAMPLED_CANDIDATES)
    probs = candidate_probs(scores, noise.temperature)
    return _picked(ids, scores - total[..., None], draw(probs, noise.uniforms), probs)


def candidates(
    hidden: Tensor, head: DraftHead, selector: Chooser | None, anchors: Tensor, count: int
) -> Candidates:
    """The `count` best tokens a slot, or fewer where there are not so many.

    A selector or a Markov head scores the candidates of a slot after every candidate of the slot before, so
    that a tree's node is as likely as it is after its own parent.

    Source: DFlash2's selector and DSpark's Markov head for the scores; giving them to a tree is ours.
    """
    logits = head(hidden)
    if selector is None:
        scores, ids = head.best(logits, count)
        log_probs = scores - logits.logsumexp(-1, keepdim=True)
        return Candidates(log_probs.clamp(max=0), ids)
    ids, pairs = selector.pairs(hidden, logits, head, anchors)
    after, choice = pairs.log_softmax(-1).sort(dim=-1, descending=True, stable=True)
    return Candidates(after[..., :count], ids, choice[..., :count])


def _selected(
    hidden: Tensor,
    logits: Tensor,
    head: DraftHead,
    selector: Chooser,
    anchors: Tensor,
    noise: Noise | None,
) -> Guess:
    temperature, uniforms = (noise.temperature, noise.uniforms) if noise else (None, None)
    ids, scores, picks = selector(hidden, logits, head, anchors, temperature, uniforms)
    log_probs = scores.log_softmax(-1)
    return _picked(ids, log_probs, picks, candidate_probs(scores, noise.temperature) if noise else None)


def _picked(ids: Tensor, log_probs: Tensor, picks: Tensor, probs: Tensor | None) -> Guess:
    """Candidates [B, D', K] and the picked index [B, D'] of each slot as a guess."""
    index = picks[..., None]
    return Guess(
        tokens=ids.gather(-1, index)[..., 0],
        log_probs=log_probs.gather(-1, index)[..., 0],
        distribution=None if probs is None else DraftDistribution(ids, probs),
    )
