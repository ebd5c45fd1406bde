"""Sampling verification: what is committed is a sample of the target, at any temperature."""

import torch
from torch import Tensor

from dflash_core.proposal import DraftDistribution, Proposal
from dflash_core.sampling import SamplingBatch
from dflash_core.tree import TokenTree
from dflash_core.verdict import Verdict
from dflash_core.verify.choice import target_choice, target_probs
from dflash_core.verify.greedy import follow, greedy_verdict
from dflash_kernels.verify_rejection import verify_rejection


class SamplingVerifier:
    """Greedy and sampled requests in one batch.

    Point-mass proposals: the target draws its token at every node and the walk follows matches. As a
    token's noise depends on its position alone, the outcome is, token for token, that of plain sampling.
    Proposals with distributions: rejection sampling, which accepts more often and keeps the distribution,
    but not the very tokens, of plain sampling.
    """

    name = "sampling"
    lossless = True

    def verify(self, proposal: Proposal, logits: Tensor, sampling: SamplingBatch) -> Verdict:
        """See `Verifier.verify`."""
        if sampling.greedy:
            return greedy_verdict(proposal.tree, logits)
        tree, distribution = proposal.tree, proposal.distribution
        if distribution is None:
            return follow(tree, target_choice(logits, tree.depths, sampling))
        rejected = _reject(tree, distribution, logits, sampling)
        if distribution.drawn is None:
            return rejected
        followed = follow(tree, target_choice(logits, tree.depths, sampling))
        return _either(distribution.drawn, rejected, followed)


def _reject(
    tree: TokenTree, distribution: DraftDistribution, logits: Tensor, sampling: SamplingBatch
) -> Verdict:
    branches = min(distribution.ids.shape[-1], tree.width - 1)
    accepted, nodes, tokens = verify_rejection(
        tree.tokens,
        tree.parents,
        tree.depths,
        tree.visible,
        tree.num_nodes,
        target_probs(logits, sampling),
        distribution.ids,
        distribution.probs,
        sampling.seeds,
        sampling.positions,
        max_depth=tree.max_depth,
        max_children=1 if tree.is_chain or distribution.drawn is not None else branches,
    )
    return Verdict(accepted, nodes, tokens)


def _either(first: Tensor, one: Verdict, other: Verdict) -> Verdict:
    """Per request the one verdict where `first` [B] says so, else the other."""
    rows = first[:, None]
    return Verdict(
        torch.where(first, one.accepted, other.accepted),
        torch.where(rows, one.nodes, other.nodes),
        torch.where(rows, one.tokens, other.tokens),
    )
