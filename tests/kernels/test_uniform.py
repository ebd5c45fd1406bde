"""The noise is uniform, independent along every coordinate, and the same bits everywhere.

Checks alarm falsely with probability 1e-6 each; seeds are fixed, so that they do not flicker.
"""

import pytest
import torch
from scipy import stats

from dflash_kernels.uniform import ACCEPT, DRAFT, RESIDUAL, STREAMS, TARGET, uniform

ALPHA = 1e-6
MASK = (1 << 64) - 1
SEEDS = {"small": range(400), "large": range(2**62, 2**62 + 400), "sparse": [s << 40 for s in range(400)]}
POSITIONS = torch.arange(100)


def mixed(x: int) -> int:
    """SplitMix64 in Python's unbounded integers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def expected(seed: int, position: int, stream: int) -> float:
    return (mixed(mixed(mixed(seed) ^ position) ^ stream) >> 11) / 2**53


def test_bits_are_those_of_integer_arithmetic():
    seeds = torch.tensor([0, 1, 12345, 2**31, 2**62 + 7, 2**63 - 1])
    positions = torch.tensor(
        [[0, 1, 2], [5, 8191, 2**20], [7, 7, 7], [0, 2**31, 2**40], [1, 2, 3], [9, 8, 7]]
    )
    for stream in (TARGET, DRAFT, ACCEPT, RESIDUAL, ACCEPT + STREAMS * 15):
        noise = uniform(seeds, positions, stream)
        assert noise.dtype == torch.float64
        for row, seed in enumerate(seeds.tolist()):
            wanted = [expected(seed, position, stream) for position in positions[row].tolist()]
            assert noise[row].tolist() == wanted


def test_any_shape_of_positions_is_keyed_by_its_first_axis():
    seeds = torch.tensor([3, 4])
    positions = torch.arange(2 * 3 * 5).view(2, 3, 5)
    noise = uniform(seeds, positions, DRAFT)
    assert noise.shape == (2, 3, 5)
    assert torch.equal(noise[1, 2], uniform(seeds[1:], positions[1:, 2], DRAFT)[0])
    assert torch.equal(noise[:, 0, 0], uniform(seeds, positions[:, 0, 0], DRAFT))


def grid(seeds, stream):
    """[seeds, positions] of noise."""
    seeds = torch.tensor(list(seeds))
    return uniform(seeds, POSITIONS.expand(len(seeds), -1), stream)


def assert_uniform(x, bins, what):
    counts = torch.histc(x.double().flatten(), bins, 0, 1)
    p = stats.chisquare(counts.numpy()).pvalue
    assert p > ALPHA, f"{what}: p = {p:.2g}"
    assert p < 1 - ALPHA, f"{what}: suspiciously even, p = {p:.8f}"


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("stream", [TARGET, DRAFT, ACCEPT, RESIDUAL, ACCEPT + STREAMS])
def test_values_fill_the_unit_interval_evenly(seeds, stream):
    noise = grid(SEEDS[seeds], stream)
    assert 0 <= float(noise.min()) <= float(noise.max()) < 1
    assert_uniform(noise, 200, "all")
    assert_uniform(noise * 2**20 % 1, 200, "digits behind the first 20 bits")


@pytest.mark.parametrize("seeds", SEEDS)
def test_neighbours_are_independent(seeds):
    """Pairs fill the unit square evenly: along seeds, along positions, and from stream to stream."""
    target, draft, accept, again = (grid(SEEDS[seeds], s) for s in (TARGET, DRAFT, ACCEPT, ACCEPT + STREAMS))
    pairs = {
        "next position": (target[:, :-1], target[:, 1:]),
        "second next position": (target[:, :-2], target[:, 2:]),
        "next seed": (target[:-1], target[1:]),
        "seed and position swapped": (target[:100], target[:100].T),
        "target and draft": (target, draft),
        "draft and accept": (draft, accept),
        "siblings": (accept, again),
    }
    for what, (x, y) in pairs.items():
        x, y = x.flatten(), y.flatten()
        different = x != y
        x, y = x[different], y[different]
        assert len(x) > 9_000, what
        cells = torch.bincount((x * 16).long() * 16 + (y * 16).long(), minlength=256)
        if what != "seed and position swapped":
            assert stats.chisquare(cells.numpy()).pvalue > ALPHA, what
        z = float(torch.corrcoef(torch.stack([x, y]))[0, 1]) * len(x) ** 0.5
        assert abs(z) < stats.norm.isf(ALPHA / 2) * 2**0.5, f"{what}: z = {z:.1f}"


def test_no_two_keys_share_their_noise():
    noise = torch.stack([grid(SEEDS["small"], stream) for stream in range(16)])
    assert len(noise.unique()) == noise.numel()
