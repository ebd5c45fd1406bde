"""Inverse frequencies of a `RopeSpec`."""

import math

import torch
from torch import Tensor

from dflash_core.errors import UnsupportedError
from dflash_core.spec import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> tuple[Tensor, float]:
    """Frequencies of a head's d / 2 planes, and the factor on cosines and sines.

    Returns:
        [d / 2] float32, and the attention factor (1 but for YaRN).

    Raises:
        UnsupportedError: YaRN without the context length that the model was first trained on.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    base = rope.theta**-exponents
    if rope.kind == "default":
        return base, 1.0
    if rope.kind == "linear":
        return base / rope.factor, 1.0
    return _yarn(rope, head_dim, base), _attention_factor(rope)


def _yarn(rope: RopeSpec, head_dim: int, base: Tensor) -> Tensor:
    """Planes that turn often over the trained context keep their frequency, slow ones are stretched by
    `factor`, and those between are blended linearly (Peng et al. 2023, section 3.2)."""
    trained = rope.original_max_position_embeddings
    if trained is None:
        raise UnsupportedError(
            "YaRN rope without original_max_position_embeddings cannot be built; "
            "put the trained context length into the draft's rope_scaling."
        )

    def plane(turns: float) -> float:
        """The (fractional) plane that makes this many turns over the trained context."""
        return head_dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = plane(rope.beta_fast), plane(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = max(high - low, 0.001)
    planes = torch.arange(head_dim // 2, dtype=torch.float32)
    stretched = ((planes - low) / width).clamp(0, 1)
    return base * (1 - stretched) + base / rope.factor * stretched


def _attention_factor(rope: RopeSpec) -> float:
    """The explicit factor, else the paper's `0.1 ln(factor) + 1`, as a ratio where two m-scales are given."""
    if rope.attention_factor is not None:
        return rope.attention_factor

    def temperature(mscale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * mscale * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return temperature(rope.mscale) / temperature(rope.mscale_all_dim)
    return temperature(1.0)
