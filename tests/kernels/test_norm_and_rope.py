"""RMS norm and rotary embedding."""

import pytest
import torch

from dflash_kernels.rms_norm import compiled as rms_norm_in_c
from dflash_kernels.rms_norm import rms_norm
from dflash_kernels.rope import compiled as rope_in_c
from dflash_kernels.rope import rope, rope_angles


@pytest.mark.parametrize("shape", [(1,), (3, 7), (2, 3, 5, 15)], ids=str)
def test_rms_norm_is_its_formula(shape):
    x, weight = torch.randn(shape), torch.randn(shape[-1])
    expected = x / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), expected.float())


def test_rms_norm_takes_a_weight_a_layer():
    x, weights = torch.randn(5, 3, 2, 8), torch.randn(3, 1, 8)
    together = rms_norm(x, weights, 1e-6)
    for layer in range(3):
        torch.testing.assert_close(together[:, layer], rms_norm(x[:, layer], weights[layer, 0], 1e-6))


def test_rms_norm_of_tiny_bfloat16_values_does_not_vanish():
    x = torch.full((4,), 1e-20).bfloat16()
    assert rms_norm(x, torch.ones(4), 1e-45).min() > 0.5


def test_rope_turns_each_plane_by_position_times_frequency():
    frequencies = torch.tensor([1.0, 0.1, 0.01])
    x, positions = torch.randn(2, 5, 3, 6), torch.randint(0, 1000, (2, 5))
    cos, sin = rope_angles(positions, frequencies, 1.5)
    out = rope(x, cos, sin)
    planes = torch.complex(*x.double().split(3, -1))
    turn = torch.polar(torch.tensor(1.5).double(), positions[..., None].double() * frequencies)
    expected = planes * turn[:, :, None]
    torch.testing.assert_close(out.double(), torch.cat([expected.real, expected.imag], -1), atol=1e-4, rtol=0)


def test_scores_of_rotated_heads_depend_on_the_distance_only():
    frequencies = 10000 ** -(torch.arange(8) / 8)
    q, k = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def score(at, key_at):
        turned = [rope(x, *rope_angles(torch.tensor([[p]]), frequencies)) for x, p in ((q, at), (k, key_at))]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(5, 3), score(105, 103), atol=1e-4, rtol=0)
    assert (score(5, 3) - score(5, 1)).abs() > 1e-3


compiled = pytest.mark.skipif(rms_norm_in_c.routine() is None, reason="this machine has no C compiler")


@compiled
@pytest.mark.parametrize("shape", [(1,), (3, 7), (2, 3, 5, 15), (4, 576), (0, 8)], ids=str)
def test_the_compiled_norm_is_the_reference(shape):
    x, weight = torch.randn(shape) * 3, torch.randn(shape[-1])
    strided = torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]
    assert rms_norm_in_c.fits(x, weight)
    for each in (x, strided):
        expected = rms_norm(each, weight, 1e-6, impl="reference")
        torch.testing.assert_close(rms_norm(each, weight, 1e-6), expected, rtol=1e-5, atol=1e-6)


@compiled
@pytest.mark.parametrize("shape", [(3, 2, 8), (2, 5, 3, 6), (1, 4, 9, 64)], ids=str)
def test_the_compiled_rope_is_the_reference(shape):
    x = torch.randn(shape)
    angles = torch.rand(*shape[:-2], shape[-1] // 2) * 7
    cos, sin = angles.cos(), angles.sin()
    sliced = torch.randn(*shape[:-2], 2, *shape[-2:]).unbind(-3)[1]
    assert rope_in_c.fits(x, cos, sin)
    for each in (x, sliced):
        torch.testing.assert_close(rope(each, cos, sin), rope(each, cos, sin, impl="reference"))


@compiled
def test_what_the_compiled_routines_are_not_made_for_is_left_to_the_reference():
    x = torch.randn(3, 8)
    for weight in (torch.ones(1), torch.ones(9), torch.ones(8).double()):
        assert not rms_norm_in_c.fits(x, weight)
    torch.testing.assert_close(rms_norm(x, torch.full((1,), 2.0), 1e-6), 2 * rms_norm(x, torch.ones(8), 1e-6))
    negative = torch._neg_view(x)
    torch.testing.assert_close(rms_norm(negative, torch.ones(8), 1e-6), rms_norm(-x, torch.ones(8), 1e-6))
    heads, angle = torch.randn(2, 3, 1, 8), torch.rand(2, 3, 4)
    assert rope_in_c.fits(heads, angle, angle)
    assert not rope_in_c.fits(heads, angle[..., :2], angle[..., :2])
    assert not rope_in_c.fits(heads, angle, angle[:1, :1])
    assert not rope_in_c.fits(heads[..., :7], angle[..., :3], angle[..., :3])


def test_what_asks_for_gradients_gets_them():
    x = torch.randn(4, 8, requires_grad=True)
    angles = torch.rand(4, 4)
    rope(rms_norm(x, torch.ones(8), 1e-6).view(4, 1, 8), angles.cos(), angles.sin()).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
