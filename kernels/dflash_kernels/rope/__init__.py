"""Rotary position embedding."""

from torch import Tensor

from dflash_kernels.dispatch import Impl, choose, with_triton
from dflash_kernels.rope import compiled, reference

__all__ = ["rope", "rope_angles"]

_ANGLES = {"reference": reference.rope_angles}
_ROPE = with_triton("rope", {"reference": reference.rope, "compiled": compiled.rope})


def rope_angles(
    positions: Tensor, inverse_frequencies: Tensor, scale: float = 1.0, *, impl: Impl = "auto"
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions; see `reference.rope_angles`."""
    return choose("rope_angles", impl, positions, _ANGLES)(positions, inverse_frequencies, scale)


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, impl: Impl = "auto") -> Tensor:
    """Rotate every head; see `reference.rope`."""
    if impl == "auto" and compiled.fits(x, cos, sin):
        return compiled.rope(x, cos, sin)
    out: Tensor = choose("rope", impl, x, _ROPE)(x, cos, sin)
    return out
