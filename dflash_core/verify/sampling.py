"""Sampling verification: what is committed is a sample of the target, at any temperature."""

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
        if proposal.distribution is None:
            return follow(proposal.tree, target_choice(logits, proposal.tree.depths, sampling))
        return _reject(proposal.tree, proposal.distribution, logits, sampling)


def _reject(
    tree: TokenTree, distribution: DraftDistribution, logits: Tensor, sampling: SamplingBatch
) -> Verdict:
    candidates = distribution.ids.shape[-1]
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
        max_children=1 if tree.is_chain else min(candidates, tree.width - 1),
    )
    return Verdict(accepted, nodes, tokens)
