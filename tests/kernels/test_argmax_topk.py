"""Chunked argmax and top-k say what torch says."""

import pytest
import torch

from dflash_kernels.argmax import argmax
from dflash_kernels.topk import topk

WIDTHS = [1, 5, 31, 64, 255, 256, 257, 1000, 4096, 5001]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", WIDTHS)
def test_argmax_is_torchs(vocab, dtype):
    x = torch.randn(3, 4, vocab, generator=torch.Generator().manual_seed(vocab)).to(dtype)
    x[0, 0, vocab // 2] = float("inf")
    x[1, 1] = float("-inf")
    assert torch.equal(argmax(x), x.argmax(-1))


@pytest.mark.parametrize("vocab", WIDTHS)
def test_argmax_takes_the_first_of_equals(vocab):
    x = torch.randint(0, 3, (20, vocab), generator=torch.Generator().manual_seed(vocab)).float()
    first = (x == x.amax(-1, keepdim=True)).float().argmax(-1)
    assert torch.equal(argmax(x), first)


@pytest.mark.parametrize("vocab", WIDTHS)
@pytest.mark.parametrize("k", [1, 2, 16, 50])
def test_topk_values_are_torchs_and_ids_have_them(vocab, k):
    k = min(k, vocab)
    generator = torch.Generator().manual_seed(vocab)
    for x in (
        torch.randn(3, 4, vocab, generator=generator),
        torch.randn(2, vocab, generator=generator).round(),
    ):
        values, ids = topk(x, k)
        assert torch.equal(values, x.topk(k).values)
        assert torch.equal(x.gather(-1, ids), values)
        assert all(len(set(row)) == k for row in ids.flatten(0, -2).tolist())


def test_both_look_at_a_view_where_it_lies():
    x = torch.randn(4, 6, 2000)[:, ::2, 3:1500]
    assert torch.equal(argmax(x), x.argmax(-1))
    assert torch.equal(topk(x, 20)[0], x.topk(20).values)
