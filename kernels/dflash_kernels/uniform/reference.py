"""Reference of `uniform`: 64-bit unsigned arithmetic on torch's signed integers, which wrap around."""

from torch import Tensor


def _signed(bits: int) -> int:
    """The int64 with the same bits as this uint64."""
    return bits - (1 << 64) if bits >> 63 else bits


GOLDEN = _signed(0x9E3779B97F4A7C15)
FIRST = _signed(0xBF58476D1CE4E5B9)
SECOND = _signed(0x94D049BB133111EB)


def uniform(seeds: Tensor, positions: Tensor, stream: int) -> Tensor:
    """Absorb seed, position and stream one after the other; the upper 53 bits are the answer."""
    state = _mix(seeds).reshape(-1, *[1] * (positions.dim() - 1))
    state = _mix(_mix(state ^ positions) ^ stream)
    return _shift(state, 11).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = x + GOLDEN
    x = (x ^ _shift(x, 30)) * FIRST
    x = (x ^ _shift(x, 27)) * SECOND
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own one copies the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
