"""Greedy verification: the drafts that the target would have chosen itself."""

import torch
from torch import Tensor

from dflash_core.errors import UnsupportedError
from dflash_core.proposal import Proposal
from dflash_core.sampling import SamplingBatch
from dflash_core.tree import TokenTree
from dflash_core.verdict import Verdict
from dflash_kernels.argmax import argmax
from dflash_kernels.verify_greedy import verify_greedy
from dflash_kernels.verify_tree import verify_tree


class GreedyVerifier:
    """Accepts by argmax, whatever distribution the drafts came from."""

    name = "greedy"
    lossless = True

    def verify(self, proposal: Proposal, logits: Tensor, sampling: SamplingBatch) -> Verdict:
        """See `Verifier.verify`.

        Raises:
            UnsupportedError: a request has a temperature above 0, which this verifier would ignore.
        """
        if not sampling.greedy:
            raise UnsupportedError(
                'The verifier "greedy" cannot serve a request with a temperature above 0; '
                'use the verifier "sampling", or temperature 0.'
            )
        return greedy_verdict(proposal.tree, logits)


def greedy_verdict(tree: TokenTree, logits: Tensor) -> Verdict:
    """The verdict of argmax over [B, N, V] logits."""
    if not tree.is_chain:
        return follow(tree, argmax(logits))
    accepted, choice = verify_greedy(tree.tokens, logits, tree.num_nodes)
    slots = torch.arange(tree.max_depth + 1, device=accepted.device)
    kept = slots <= accepted[:, None]
    choice = choice[:, : len(slots)]  # accepted drafts are what the target chose, and so is the bonus
    return Verdict(accepted, torch.where(kept, slots, -1), torch.where(kept, choice, -1))


def follow(tree: TokenTree, choice: Tensor) -> Verdict:
    """The verdict of one chosen token [B, N] after every node."""
    accepted, nodes, tokens = verify_tree(
        tree.tokens,
        tree.parents,
        tree.depths,
        tree.visible,
        tree.num_nodes,
        choice,
        max_depth=tree.max_depth,
    )
    return Verdict(accepted, nodes, tokens)
