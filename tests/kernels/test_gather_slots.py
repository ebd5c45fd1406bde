"""KV compaction moves exactly the named slots, whatever overlaps."""

import pytest
import torch

from dflash_kernels.gather_slots import gather_slots


def _expected(cache, starts, source):
    moved = cache.clone()
    for row, (start, slots) in enumerate(zip(starts.tolist(), source.tolist(), strict=True)):
        for j, slot in enumerate(slots):
            if slot >= 0:
                moved[row, :, start + j] = cache[row, :, start + slot]
    return moved


@pytest.mark.parametrize(
    "source",
    [
        [[0, 2, 5, -1], [0, -1, -1, -1], [0, 1, 2, 3]],
        [[0, 1, 3, 4], [0, 2, 3, 4], [0, 5, 6, 7]],  # a slot is both read and overwritten
        [[3, 2, 1, 0], [1, 0, -1, -1], [0, 0, 0, 0]],  # any order, any repetition
    ],
)
def test_only_the_named_slots_move_in_each_row(source):
    torch.manual_seed(0)
    caches = [torch.randn(5, 2, 23, 4), torch.randn(5, 1, 23, 3)]
    starts, sources = torch.tensor([0, 7, 12]), torch.tensor(source)
    expected = [_expected(cache, starts, sources) for cache in caches]
    gather_slots(caches, starts, sources)
    for cache, want in zip(caches, expected, strict=True):
        assert torch.equal(cache, want)


def test_it_writes_through_views_of_a_larger_buffer():
    buffer = torch.arange(2 * 8.0).reshape(1, 1, 8, 2).clone()
    gather_slots([buffer[:1, :, :6]], torch.tensor([1]), torch.tensor([[0, 2, 4]]))
    assert buffer[0, 0, :, 0].tolist() == [0, 2, 6, 10, 8, 10, 12, 14]


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match="gather_slots has no implementation 'triton'"):
        gather_slots([torch.zeros(1, 1, 4, 1)], torch.tensor([0]), torch.tensor([[0]]), impl="triton")
