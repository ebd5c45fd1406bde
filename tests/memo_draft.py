"""The real draft, asked once for every prefix; see `memo_target`."""

from dataclasses import dataclass

import torch
from markov import rows_of
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dflash_core.proposal import DraftDistribution, Proposal
from dflash_core.schedule.base import CyclePlan
from dflash_core.tree import chain, from_parents
from dflash_kernels.draw import draw
from dflash_kernels.uniform import DRAFT, uniform


@dataclass(frozen=True)
class Remembered:
    """What was drafted for one request, N nodes.

    Attributes:
        tokens, parents: [N] int64.
        distribution: [N, K] ids and probabilities that each node's child was drawn from, or `None`.
    """

    tokens: Tensor
    parents: Tensor
    distribution: tuple[Tensor, Tensor] | None


class MemoDrafter:
    """A `Drafter` over another, for requests of a `MemoTarget` that all have the same settings.

    What the real draft proposes after a prefix is remembered. Where it samples, its distributions are, and
    every request draws from them with its own noise.
    """

    name = "memo"

    def __init__(self, draft, memo):
        self.block_size = draft.block_size
        self.taps = draft.taps
        self._draft = draft
        self._memo = memo
        self._known = {}

    def start(self):
        return MemoContext()

    def join(self, context, tokens, taps):
        assert tuple(tokens) == self._memo.prompt
        assert torch.equal(taps, self._memo.prompt_taps[0])
        context.rows.append(())

    def commit(self, context, tokens, taps, nodes):
        for row, new in enumerate(tokens):
            assert len(new) == len(nodes[row])
            context.rows[row] += tuple(new)

    def propose(self, anchors, context, plan, sampling):
        after = [(*row, anchor) for row, anchor in zip(context.rows, anchors.tolist(), strict=True)]
        plans = zip(plan.block_sizes, plan.verify_lengths, plan.tree_budgets, strict=True)
        keys = list(zip(after, plans, strict=True))
        new = sorted({key: row for row, key in enumerate(keys) if key not in self._known}.values())
        drafted = self._ask([keys[row] for row in new], rows_of(sampling, torch.tensor(new))) if new else None
        proposal = self._recall(keys, max(plan.verify_lengths) - 1, sampling)
        if drafted is not None:
            assert torch.equal(proposal.tree.tokens[new, : drafted.tree.width], drafted.tree.tokens)
        return proposal

    def _ask(self, keys, sampling):
        """Let the real draft propose after prefixes that are new, and remember what it says."""
        context = self._draft.start()
        for suffix, _ in keys:
            committed = [suffix[:length] for length in range(1, len(suffix))]
            taps = torch.cat([self._memo.prompt_taps[0], self._memo.node_taps(self._memo.places(committed))])
            self._draft.join(context, [*self._memo.prompt, *suffix[:-1]], taps)
        blocks, lengths, budgets = zip(*(planned for _, planned in keys), strict=True)
        plan = CyclePlan(blocks, lengths, budgets, (None,) * len(keys))
        anchors = torch.tensor([suffix[-1] for suffix, _ in keys])
        proposal = self._draft.propose(anchors, context, plan, sampling)
        tree, drawn_from = proposal.tree, proposal.distribution
        for row, (key, count) in enumerate(zip(keys, tree.num_nodes.tolist(), strict=True)):
            self._known[key] = Remembered(
                tree.tokens[row, :count],
                tree.parents[row, :count],
                drawn_from and (drawn_from.ids[row, :count], drawn_from.probs[row, :count]),
            )
        return proposal

    def _recall(self, keys, depth, sampling):
        known = [self._known[key] for key in keys]
        tokens = pad_sequence([one.tokens for one in known], batch_first=True)
        num_nodes = torch.tensor([len(one.tokens) for one in known])
        if any(budget is not None for _, (_, _, budget) in keys):
            parents = pad_sequence([one.parents for one in known], batch_first=True)
            return Proposal(from_parents(tokens, parents, num_nodes, depth))
        if known[0].distribution is None:
            return Proposal(chain(tokens, num_nodes))
        ids, probs = (
            pad_sequence([one.distribution[part] for one in known], batch_first=True) for part in (0, 1)
        )
        positions = sampling.positions[:, None] + torch.arange(1, tokens.shape[1])
        picks = draw(probs[:, :-1], uniform(sampling.seeds, positions, DRAFT))
        tokens[:, 1:] = ids[:, :-1].gather(-1, picks[..., None])[..., 0]
        return Proposal(chain(tokens, num_nodes), DraftDistribution(ids, probs))


class MemoContext:
    """Tokens of each row after the prompt, the anchor not among them."""

    def __init__(self):
        self.rows = []

    def keep(self, rows):
        self.rows = [self.rows[row] for row in rows]
