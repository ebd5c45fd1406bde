"""Guesses of the drafted rows as a proposal for the whole batch."""

import torch
from torch import Tensor

from dflash_core.drafter.guess import Candidates, Guess
from dflash_core.drafter.shape import DraftShape
from dflash_core.proposal import DraftDistribution, Proposal
from dflash_core.tree import best_first, chain


def plain_proposal(anchors: Tensor) -> Proposal:
    """Every row's anchor alone."""
    tree = chain(anchors[:, None], torch.ones_like(anchors))
    return Proposal(tree, log_probs=torch.zeros_like(anchors[:, None], dtype=torch.float32))


def chain_proposal(anchors: Tensor, shape: DraftShape, rows: Tensor, guess: Guess) -> Proposal:
    """Chains of each row's verify length; rows that were not drafted have their anchor alone.

    Args:
        anchors: [B] int64.
        rows: [R] int64, `shape.rows` on the device.
        guess: of the R rows and D' slots.
    """
    batch = len(anchors)
    drafts = _spread(guess.tokens, rows, batch, shape.everyone)
    log_probs = _spread(guess.log_probs, rows, batch, shape.everyone)
    num_nodes = shape.tensor(shape.verify_lengths, anchors.device)
    distribution = None
    if guess.distribution is not None:
        # node n's children are slot n + 1's; the last node has none
        ids = _spread(guess.distribution.ids, rows, batch, shape.everyone)
        probs = _spread(guess.distribution.probs, rows, batch, shape.everyone)
        distribution = DraftDistribution(
            torch.cat([ids, torch.zeros_like(ids[:, :1])], 1),
            torch.cat([probs, torch.zeros_like(probs[:, :1])], 1),
        )
    return Proposal(
        chain(torch.cat([anchors[:, None], drafts], 1), num_nodes),
        distribution,
        torch.cat([torch.zeros_like(log_probs[:, :1]), log_probs], 1),
    )


def tree_proposal(anchors: Tensor, shape: DraftShape, rows: Tensor, candidates: Candidates) -> Proposal:
    """Best-first trees of each row's budget; a row without one gets a chain of its verify length.

    Args:
        candidates: of the R rows and D' slots.
    """
    batch, device = len(anchors), anchors.device
    log_probs = _spread(candidates.log_probs, rows, batch, shape.everyone)
    ids = _spread(candidates.ids, rows, batch, shape.everyone)
    depths = torch.arange(1, shape.depth + 1, device=device)
    ranks = torch.arange(ids.shape[2], device=device)
    too_deep = depths >= shape.tensor(shape.verify_lengths, device)[:, None]  # [B, D']
    too_wide = (ranks > 0) & ~shape.tensor(shape.trees, device)[:, None]  # [B, K]: a chain has one branch
    outside = too_deep[:, :, None] | too_wide[:, None, :]
    tree, node_log_probs = best_first(
        anchors,
        log_probs.masked_fill(outside, float("-inf")),
        ids,
        shape.tensor(shape.budgets, device),
        int(shape.budgets.max()),
    )
    return Proposal(tree, log_probs=node_log_probs)


def _spread(x: Tensor, rows: Tensor, batch: int, everyone: bool) -> Tensor:
    """[R, ...] of the drafted rows to [B, ...], the others 0."""
    if everyone:
        return x
    return x.new_zeros(batch, *x.shape[1:]).index_copy_(0, rows, x)
