"""Specification of `rms_norm`."""

from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide by the root mean square of the last dimension, then scale.

    Args:
        x: [..., d] floats.
        weight: broadcastable to `x`, so that several layers' norms are one call ([L, 1, d] for [M, L, H, d]).
        eps: added to the mean square.

    Returns:
        [..., d] in the dtype of `x`, computed in float32.

    Source: Zhang and Sennrich 2019.
    """
    normed = F.rms_norm(x.float(), x.shape[-1:], None, eps)
    return (normed * weight.float()).to(x.dtype)
