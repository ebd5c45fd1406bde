"""All transitions of a block are scored as the selector's walk scores the ones that it takes."""

import pytest
import torch

from dflash_kernels.selector_pairs import selector_pairs
from dflash_kernels.selector_walk import selector_walk

VOCAB, RANK = 37, 5


def arguments(batch, slots, count, dtype=torch.float32):
    generator = torch.Generator().manual_seed(batch + slots + count)
    return {
        "unary": torch.randn(batch, slots, count, generator=generator).to(dtype),
        "ids": torch.rand(batch, slots, VOCAB, generator=generator).argsort(-1)[..., :count],
        "hidden": torch.randn(batch, slots, RANK, generator=generator).to(dtype),
        "predecessors": torch.randn(VOCAB, RANK, generator=generator).to(dtype),
        "successors": torch.randn(VOCAB, RANK, generator=generator).to(dtype),
        "anchors": torch.randint(0, VOCAB, (batch,), generator=generator),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 4), (3, 7, 16)], ids=str)
def test_every_pair_has_the_score_of_its_own_two_tokens(shape, dtype):
    given = arguments(*shape, dtype)
    pairs = selector_pairs(**given)
    batch, slots, count = shape
    assert pairs.shape == (batch, slots, count, count)
    assert pairs.dtype == torch.float32
    a, b, hidden, unary = (given[name].double() for name in ("predecessors", "successors", "hidden", "unary"))
    for row in range(batch):
        for slot in range(slots):
            for before in range(count):
                token = given["ids"][row, slot - 1, before] if slot else given["anchors"][row]
                pull = b[given["ids"][row, slot]] @ (a[token] * hidden[row, slot])
                expected = (unary[row, slot] + pull).float()
                torch.testing.assert_close(pairs[row, slot, before], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 4), (5, 15, 16)], ids=str)
def test_along_the_walk_they_are_the_walks_scores(shape):
    given = arguments(*shape)
    picks, scores = selector_walk(**given)
    before = torch.cat([torch.zeros_like(picks[:, :1]), picks[:, :-1]], 1)
    index = before[..., None, None].expand(-1, -1, 1, shape[2])
    torch.testing.assert_close(selector_pairs(**given).gather(2, index)[:, :, 0], scores)
