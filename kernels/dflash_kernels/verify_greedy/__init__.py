"""Greedy verification of chains."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose
from dflash_kernels.verify_greedy import reference

__all__ = ["verify_greedy"]

_IMPLS = {"reference": reference.verify_greedy}


def verify_greedy(
    tokens: Tensor, logits: Tensor, num_nodes: Tensor, *, impl: Impl = "auto"
) -> tuple[Tensor, Tensor]:
    """Accept the longest drafted prefix that the target would have chosen itself.

    Args:
        tokens: [B, S] int64, the anchor in slot 0 and the drafts after it.
        logits: [B, S, V] floats, the target's logits at every slot.
        num_nodes: [B] int64, 1 to S; slots from there on are padding and never accepted.

    Returns:
        accepted: [B] int64, drafts accepted, 0 to num_nodes - 1.
        choice: [B, S] int64, the target's own choice after every slot: the accepted drafts, and then the
            bonus.

    Source: Leviathan et al. 2023, section 2.1, with argmax as the sampler.
    """
    return choose("verify_greedy", impl, logits, _IMPLS)(tokens, logits, num_nodes)
