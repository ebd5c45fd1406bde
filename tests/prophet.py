"""A drafter that knows the target's greedy answers, and errs at will.

It stands in for a well trained draft: random weights are hardly ever right, so that long acceptances, and
trees whose second branch is the right one, would go untested.
"""

import random

import torch

from dflash_core.drafter.shape import DraftShape
from dflash_core.proposal import Proposal
from dflash_core.tree import best_first, chain

CANDIDATES = 6


class ProphetContext:
    """The committed tokens of each row."""

    def __init__(self):
        self.rows = []

    @property
    def lengths(self):
        return [len(row) for row in self.rows]

    def keep(self, rows):
        self.rows = [self.rows[row] for row in rows]


class Prophet:
    """Proposes the true continuation; a token is wrong with probability `error`, but second best in trees."""

    name = "prophet"
    taps = ()

    def __init__(self, answers, vocabulary, block_size=6, error=0.3):
        """`answers` maps a prompt (a tuple) to the target's own continuation."""
        self.answers, self.vocabulary, self.block_size, self.error = answers, vocabulary, block_size, error

    def start(self):
        return ProphetContext()

    def join(self, context, tokens, taps):
        assert taps is None
        context.rows.append(list(tokens))

    def commit(self, context, tokens, taps, nodes):
        assert taps is None
        for row, new, kept in zip(context.rows, tokens, nodes, strict=True):
            assert len(new) == len(kept)
            row += new

    def propose(self, anchors, context, plan, sampling):
        shape = DraftShape.of(plan)
        guesses = [
            self._guess([*row, anchor], shape.depth)
            for row, anchor in zip(context.rows, anchors.tolist(), strict=True)
        ]
        ids = torch.tensor(guesses)  # [B, D, K]
        lengths = torch.from_numpy(shape.verify_lengths)
        if not shape.trees.any():
            return Proposal(chain(torch.cat([anchors[:, None], ids[:, :, 0]], 1), lengths))
        log_probs = torch.tensor([-0.3 - 0.7 * rank for rank in range(CANDIDATES)]).expand(ids.shape).clone()
        deep = torch.arange(1, shape.depth + 1) >= lengths[:, None]
        log_probs[deep] = float("-inf")
        log_probs[~torch.from_numpy(shape.trees), :, 1:] = float("-inf")
        budgets = torch.from_numpy(shape.budgets)
        return Proposal(best_first(anchors, log_probs, ids, budgets, int(budgets.max()))[0])

    def _guess(self, tokens, depth):
        """[D][K] candidates, best first; the true token is among the first two."""
        prompt = next(p for p in self.answers if tuple(tokens[: len(p)]) == p)
        truth = self.answers[prompt][len(tokens) - len(prompt) :]
        slots = []
        for slot in range(depth):
            rng = random.Random(f"{len(tokens) + slot} {prompt}")
            token = truth[slot] if slot < len(truth) else 0
            others = [other for other in range(self.vocabulary) if other != token]
            best = rng.sample(others, CANDIDATES - 1)
            best.insert(int(rng.random() < self.error), token)
            slots.append(best)
        return slots
