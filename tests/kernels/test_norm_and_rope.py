"""RMS norm and rotary embedding."""

import pytest
import torch

from dflash_kernels.rms_norm import rms_norm
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
