"""Guesses of the drafted rows as a proposal for the whole batch."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from dflash_core.drafter.guess import Candidates, Guess
from dflash_core.drafter.shape import DraftShape
from dflash_core.proposal import DraftDistribution, Proposal
from dflash_core.tree import best_first, chain


def plain_proposal(anchors: Tensor) -> Proposal:
    """Every row's anchor alone."""
    tree = chain(anchors[:, None], torch.ones_like(anchors))
    return Proposal(tree, log_probs=torch.zeros_like(anchors[:, None], dtype=torch.float32))


def chain_proposal(
    anchors: Tensor, shape: DraftShape, rows: Tensor, guess: Guess, confidence: Tensor | None = None
) -> Proposal:
    """Chains of each row's verify length; rows that were not drafted have their anchor alone.

    Args:
        anchors: [B] int64.
        rows: [R] int64, `shape.rows` on the device.
        guess: of the R rows and D' slots.
        confidence: [R, D'], where there is a head for it.
    """
    batch = len(anchors)
    drafts = _spread(guess.tokens, rows, batch, shape.everyone)
    log_probs = _spread(guess.log_probs, rows, batch, shape.everyone)
    num_nodes = shape.tensor(shape.verify_lengths, anchors.device)
    tree = chain(torch.cat([anchors[:, None], drafts], 1), num_nodes)
    return Proposal(
        tree,
        _by_node(guess.distribution, shape, rows, batch, tree.width),
        torch.cat([torch.zeros_like(log_probs[:, :1]), log_probs], 1),
        None if confidence is None else _with_anchor(_spread(confidence, rows, batch, shape.everyone)),
    )


def tree_proposal(
    anchors: Tensor, shape: DraftShape, rows: Tensor, candidates: Candidates, guess: Guess | None
) -> Proposal:
    """Best-first trees of each row's budget; a row without one gets a chain of its verify length.

    Args:
        candidates: of the R rows and D' slots.
        guess: of the same, for the chains where they are sampled; else they have the best candidates.
    """
    batch, device = len(anchors), anchors.device
    trees = shape.tensor(shape.trees, device)
    log_probs = _spread(candidates.log_probs, rows, batch, shape.everyone)
    ids = _spread(candidates.ids, rows, batch, shape.everyone)
    choice = None
    if candidates.choice is not None:
        choice = _spread(candidates.choice, rows, batch, shape.everyone)
    if guess is not None:
        tokens = _spread(guess.tokens, rows, batch, shape.everyone)
        own = _spread(guess.log_probs, rows, batch, shape.everyone)
        ids, log_probs, choice = _with_chains(ids, log_probs, choice, tokens, own, ~trees)
    depths = torch.arange(1, shape.depth + 1, device=device)
    ranks = torch.arange(log_probs.shape[-1], device=device)
    too_deep = depths >= shape.tensor(shape.verify_lengths, device)[:, None]  # [B, D']
    too_wide = (ranks > 0) & ~trees[:, None]  # [B, K]: a chain has one branch
    outside = too_deep[:, :, None] | too_wide[:, None, :]  # [B, D', K]
    if choice is not None:
        outside = outside[:, :, None]
    tree, node_log_probs = best_first(
        anchors,
        log_probs.masked_fill(outside, float("-inf")),
        ids,
        shape.tensor(shape.budgets, device),
        int(shape.budgets.max()),
        choice,
    )
    drawn = guess.distribution if guess is not None else None
    distribution = _by_node(drawn, shape, rows, batch, tree.width)
    if distribution is not None:
        distribution = replace(distribution, drawn=~trees)
    return Proposal(tree, distribution, node_log_probs)


def _with_chains(
    ids: Tensor, log_probs: Tensor, choice: Tensor | None, tokens: Tensor, own: Tensor, chains: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Candidates of B rows, of which some are chains of given tokens: candidate 0 all the way down.

    Args:
        tokens, own: [B, D'], the chains' tokens and their log-probabilities.
        chains: [B] bool.
    """
    first = (torch.arange(ids.shape[2], device=ids.device) == 0) & chains[:, None, None]  # [B, 1, C]
    ids = torch.where(first, tokens[..., None], ids)
    if choice is None:
        return ids, torch.where(first, own[..., None], log_probs), None
    first = first[:, :, None, : choice.shape[3]]  # [B, 1, 1, K]
    log_probs = torch.where(first, own[..., None, None], log_probs)
    return ids, log_probs, choice.masked_fill(first, 0)


def _by_node(
    by_slot: DraftDistribution | None, shape: DraftShape, rows: Tensor, batch: int, width: int
) -> DraftDistribution | None:
    """Distributions of R rows and D' slots as those of B chains of `width` nodes: slot n's are node n's."""
    if by_slot is None:
        return None
    ids = _spread(by_slot.ids, rows, batch, shape.everyone)
    probs = _spread(by_slot.probs, rows, batch, shape.everyone)
    missing = (0, 0, 0, width - ids.shape[1])
    return DraftDistribution(pad(ids, missing), pad(probs, missing))


def _with_anchor(confidence: Tensor) -> Tensor:
    """[B, D'] of slots to [B, D' + 1] of nodes: the anchor is certain."""
    return torch.cat([torch.ones_like(confidence[:, :1]), confidence], 1)


def _spread(x: Tensor, rows: Tensor, batch: int, everyone: bool) -> Tensor:
    """[R, ...] of the drafted rows to [B, ...], the others 0."""
    if everyone:
        return x
    return x.new_zeros(batch, *x.shape[1:]).index_copy_(0, rows, x)
