"""A draw inverts the cumulative distribution and never gives a token without weight."""

import numpy as np
import pytest
import torch

from dflash_kernels.draw import draw

LAST = 1 - 2.0**-53


@pytest.mark.parametrize("vocab", [1, 2, 7, 255, 256, 257, 1000, 5000])
def test_inverts_the_cumulative_distribution(vocab):
    generator = torch.Generator().manual_seed(vocab)
    weights = torch.rand(6, 5, vocab, generator=generator)
    weights[weights < 0.4] = 0
    weights[..., vocab // 2] += 0.01
    noise = torch.rand(6, 5, generator=generator, dtype=torch.float64)
    ids = draw(weights, noise)
    for index in np.ndindex(6, 5):
        sums = np.cumsum(weights[index].numpy().astype(np.float64))
        wanted = np.searchsorted(sums, float(noise[index]) * sums[-1], side="right")
        assert int(ids[index]) == wanted


@pytest.mark.parametrize("vocab", [3, 256, 300, 1025])
@pytest.mark.parametrize("noise", [0.0, 5e-324, 0.5, LAST])
def test_never_gives_a_token_of_weight_0(vocab, noise):
    """Also at the ends of the unit interval, and where rounding makes the sum too small."""
    generator = torch.Generator().manual_seed(1)
    for kept in (1, 2, vocab // 3, vocab):
        weights = torch.rand(50, vocab, generator=generator) + 1e-3
        order = torch.rand(50, vocab, generator=generator).argsort(-1)
        weights.scatter_(1, order[:, kept:], 0)
        for scale in (1.0, 1e-30, 1e30):
            ids = draw(weights * scale, torch.full((50,), noise, dtype=torch.float64))
            assert bool((weights.gather(1, ids[:, None]) > 0).all())


def test_the_ends_of_the_interval_are_the_first_and_last_tokens_with_weight():
    weights = torch.zeros(1, 700)
    weights[0, [300, 301, 650]] = torch.tensor([1e-6, 1.0, 1e-6])
    assert draw(weights, torch.tensor([0.0], dtype=torch.float64)).item() == 300
    assert draw(weights, torch.tensor([LAST], dtype=torch.float64)).item() == 650


def test_a_token_as_rare_as_float64_can_tell_is_found():
    weights = torch.tensor([[1.0, 2.0**-50]])
    assert draw(weights, torch.tensor([1 - 2.0**-51], dtype=torch.float64)).item() == 1
    assert draw(weights, torch.tensor([1 - 2.0**-49], dtype=torch.float64)).item() == 0


def test_noise_of_equal_steps_gives_each_token_its_share():
    probs = torch.tensor([0.5, 0.0, 0.25, 0.125, 0.125])
    noise = torch.arange(1024, dtype=torch.float64) / 1024
    ids = draw(probs.expand(1024, -1), noise)
    assert torch.bincount(ids, minlength=5).tolist() == [512, 0, 256, 128, 128]
