"""What a drafter says."""

from dataclasses import dataclass

from torch import Tensor

from dflash_core.tree import TokenTree


@dataclass(frozen=True)
class DraftDistribution:
    """The distributions that drafted tokens were drawn from, on K candidates; all other tokens have q = 0.

    Attributes:
        ids: [B, N, K] int64; row n is the distribution that the children of node n were drawn from.
        probs: [B, N, K] float32; rows sum to 1 where the node has a child.
        drawn: [B] bool, the requests whose tokens were drawn so; the others' are point masses and their rows
            mean nothing. `None` when it is all of them. Those that were drawn are chains.
    """

    ids: Tensor
    probs: Tensor
    drawn: Tensor | None = None


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens as trees.

    Attributes:
        tree: the tokens; node 0 is the anchor.
        distribution: `None` when the tokens are a deterministic function of the context (a point mass),
            which any verifier may then accept whenever the target would have drawn the same token.
        log_probs: [B, N] float32, the draft's log-probability of each node's token; 0 for the anchor.
        confidence: [B, N] float32 in [0, 1], that a node's token is accepted given that all before it are; 1
            for the anchor. `None` without a confidence head, and for trees: it knows nothing of branches.
    """

    tree: TokenTree
    distribution: DraftDistribution | None = None
    log_probs: Tensor | None = None
    confidence: Tensor | None = None
