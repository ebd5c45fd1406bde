"""Specification of `rope` and `rope_angles`."""

import torch
from torch import Tensor


def rope_angles(positions: Tensor, inverse_frequencies: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Angles once for all layers and heads.

    Args:
        positions: [...] int64.
        inverse_frequencies: [d / 2] float32.
        scale: multiplies both results (YaRN's attention factor).

    Returns:
        cos, sin: [..., d / 2] float32.
    """
    angles = positions[..., None].float() * inverse_frequencies
    cos, sin = angles.cos(), angles.sin()
    return (cos, sin) if scale == 1 else (cos * scale, sin * scale)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + d / 2) of every head.

    Args:
        x: [..., H, d] floats.
        cos, sin: [..., d / 2], the same for all heads.

    Returns:
        [..., H, d] in the dtype of `x`, computed in float32.

    Source: Su et al. 2021, in the half-split order of GPT-NeoX.
    """
    cos, sin = cos[..., None, :], sin[..., None, :]
    first, second = x.float().chunk(2, -1)
    rotated = torch.cat(
        [
            torch.addcmul(first * cos, second, sin, value=-1),
            torch.addcmul(second * cos, first, sin),
        ],
        -1,
    )
    return rotated.to(x.dtype)
