"""What a verifier answers."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Verdict:
    """Accepted paths of a batch; A = deepest possible path + 1 (the tree's `max_depth` + 1).

    Attributes:
        accepted: [B] int64, drafts accepted, 0 to A - 1.
        nodes: [B, A] int64; the root and the accepted nodes in order, `accepted + 1` of them, then -1.
        tokens: [B, A] int64; the newly committed tokens, accepted drafts and then the bonus,
            `accepted + 1` of them, then -1.
    """

    accepted: Tensor
    nodes: Tensor
    tokens: Tensor
