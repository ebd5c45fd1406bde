"""DSpark's Markov head: the best candidates of every slot, scored after the token before."""

import torch
from torch import Tensor, nn

from dflash_core.checkpoint.dspark import FROM, INTO
from dflash_core.drafter.heads import DraftHead
from dflash_core.drafter.weights import Weights, frozen
from dflash_kernels.markov_walk import markov_walk
from dflash_kernels.selector_pairs import selector_pairs

CANDIDATES = 16
"""Tokens of a slot that are scored again, the likeliest by their own logits.

Scoring the whole vocabulary would read all of W2 once a slot, where the head reads its weights once a block:
several times the head's work for tokens that are hardly ever picked (88 to 99 % of the true ones are among
the best 16 of a DFlash draft). What is drawn is drawn from these, and verified as that; so nothing is lost
but a draft now and then.
"""


class MarkovHead(nn.Module):
    """Chooses like a `CandidateSelector`, by tables that know nothing of the hidden states."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.before = frozen(weights(FROM))
        self.after = frozen(weights(INTO))

    def rows(self, anchors: Tensor, tokens: Tensor) -> Tensor:
        """[B, D', R], those of the tokens before each drafted slot.

        Args:
            anchors: [B] int64. tokens: [B, D'] int64, of the drafted slots.
        """
        rows: Tensor = self.before[torch.cat([anchors[:, None], tokens[:, :-1]], 1)]
        return rows

    def forward(
        self,
        hidden: Tensor,
        logits: Tensor,
        head: DraftHead,
        anchors: Tensor,
        temperature: Tensor | None,
        uniforms: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Walk from the anchors; see `dflash_kernels.markov_walk`, and `CandidateSelector.forward`."""
        unary, ids = head.best(logits, CANDIDATES)
        picks, scores = markov_walk(unary, ids, self.before, self.after, anchors, temperature, uniforms)
        return ids, scores, picks

    def pairs(
        self, hidden: Tensor, logits: Tensor, head: DraftHead, anchors: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Score every candidate after every candidate before it; see `CandidateSelector.pairs`."""
        unary, ids = head.best(logits, CANDIDATES)
        alike = unary.new_ones(1, 1, 1).expand(*ids.shape[:2], self.before.shape[1])
        return ids, selector_pairs(unary, ids, alike, self.before, self.after, anchors)
