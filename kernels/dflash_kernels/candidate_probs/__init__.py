"""What one of a few candidates is drawn from."""

from torch import Tensor

from dflash_kernels.candidate_probs import reference
from dflash_kernels.dispatch import Impl, choose

__all__ = ["candidate_probs"]

_IMPLEMENTATIONS = {"reference": reference.candidate_probs}


def candidate_probs(scores: Tensor, temperature: Tensor, *, impl: Impl = "auto") -> Tensor:
    """Softmax at each request's temperature; see `reference.candidate_probs`."""
    return choose("candidate_probs", impl, scores, _IMPLEMENTATIONS)(scores, temperature)
