"""The dynamic convolution is its defining sum, and looks back only."""

import pytest
import torch

from dflash_kernels.dynamic_conv import compiled, dynamic_conv


def arguments(batch, slots, width, group, size, dtype=torch.float32):
    torch.manual_seed(batch + slots)
    return (
        torch.randn(batch, slots, width, dtype=dtype),
        torch.randn(batch, slots, size, width // group, dtype=dtype),
        torch.randn(size, width, dtype=dtype),
    )


@pytest.mark.parametrize(
    "shape", [(1, 1, 6, 3, 2), (2, 5, 12, 4, 2), (3, 7, 10, 1, 3), (1, 3, 8, 8, 5)], ids=str
)
def test_it_is_the_defining_sum(shape):
    x, dynamic, base = arguments(*shape)
    _, slots, _, group, size = shape
    expected = torch.zeros_like(x)
    for slot in range(slots):
        for offset in range(min(size, slot + 1)):
            kernel = base[offset] + dynamic[:, slot, offset].repeat_interleave(group, -1)
            expected[:, slot] += kernel * x[:, slot - offset]
    torch.testing.assert_close(dynamic_conv(x, dynamic, base), expected)


@pytest.mark.skipif(compiled.routine() is None, reason="this machine has no C compiler")
@pytest.mark.parametrize(
    "shape", [(1, 1, 6, 3, 2), (2, 5, 12, 4, 2), (3, 7, 10, 1, 3), (0, 3, 8, 8, 5)], ids=str
)
def test_the_compiled_routine_is_the_reference(shape):
    x, dynamic, base = arguments(*shape)
    packed = torch.stack([torch.zeros_like(dynamic), dynamic], 2)[:, :, 1]
    strided = torch.stack([dynamic, dynamic], -1)[..., 0]
    assert compiled.fits(x, dynamic, base)
    assert not compiled.fits(x, dynamic[..., :1].double(), base)
    assert not compiled.fits(x, dynamic, base[:, :1])
    expected = dynamic_conv(x, dynamic, base, impl="reference")
    for each in (dynamic, packed, strided):
        torch.testing.assert_close(dynamic_conv(x, each, base, impl="compiled"), expected)


def test_what_comes_later_does_not_matter():
    x, dynamic, base = arguments(2, 6, 8, 4, 3)
    whole = dynamic_conv(x, dynamic, base)
    x[:, 4:], dynamic[:, 4:] = float("nan"), float("nan")
    assert torch.equal(dynamic_conv(x, dynamic, base)[:, :4], whole[:, :4])


def test_low_precision_is_summed_in_float32():
    low = arguments(2, 5, 12, 4, 2, torch.bfloat16)
    expected = dynamic_conv(*(x.float() for x in low)).bfloat16()
    assert torch.equal(dynamic_conv(*low), expected)
