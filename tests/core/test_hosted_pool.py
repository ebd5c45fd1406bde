"""A pool in an engine's slots drafts what our own pool drafts, wherever a position is put and whenever."""

import pytest
import torch
from drafter_spec import random_checkpoint, second_spec, small_spec, spark_spec
from drafter_target import StubTarget, plan

from dflash_core.drafter.block import BlockDrafter
from dflash_core.errors import SettingsError
from dflash_core.sampling import SamplingParams, sampling_batch

SPECS = {"first": small_spec(), "second": second_spec(), "spark": spark_spec()}
LENGTHS = (3, 17, 0, 9)
SLOTS = 64
RUBBISH = 10**6


def taps_of(spec, request, length):
    generator = torch.Generator().manual_seed(request)
    return torch.randn(length, spec.tap_width, generator=generator)


def make(spec, **options):
    drafter = BlockDrafter(random_checkpoint(spec), StubTarget(spec), **options)
    pool = drafter.host(SLOTS)
    for zone in pool._zones:
        zone.k.fill_(float("nan")), zone.v.fill_(float("nan"))
    return drafter, pool


def slots_for(lengths):
    """Scattered slots, slot 0 left out as engines do, and a table with rubbish past each row's end."""
    order = torch.randperm(SLOTS - 1, generator=torch.Generator().manual_seed(5)) + 1
    table = torch.full((len(lengths), max(lengths) + 4), RUBBISH, dtype=torch.int32)
    for row, part in enumerate(order[: sum(lengths)].split(list(lengths))):
        table[row, : len(part)] = part
    return table


def propose(drafter, context, blocks, trees=None):
    anchors = torch.arange(len(blocks)) * 7 + 1
    sampling = sampling_batch([SamplingParams()] * len(blocks), context.lengths)
    return drafter.propose(anchors, context, plan(blocks, None, trees), sampling)


def ours(drafter, spec, requests, lengths):
    context = drafter.start()
    for request, length in zip(requests, lengths, strict=True):
        drafter.join(context, [0] * length, taps_of(spec, request, length))
    return context


def assert_same(one, other):
    assert torch.equal(one.tree.tokens, other.tree.tokens)
    torch.testing.assert_close(one.log_probs, other.log_probs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("window", [None, 4, 100])
@pytest.mark.parametrize("piece", [1, 5, 100])
def test_a_draft_is_the_same_as_from_our_own_pool(name, window, piece):
    spec = SPECS[name]
    drafter, pool = make(spec, draft_window=window)
    table = slots_for(LENGTHS)
    for request, length in enumerate(LENGTHS):
        taps = taps_of(spec, request, length)
        for start in range(0, length, piece):
            stop = min(start + piece, length)
            pool.write(taps[start:stop], torch.arange(start, stop), table[request, start:stop].long())
    context = ours(drafter, spec, range(len(LENGTHS)), LENGTHS)
    hosted = pool.rows(table, LENGTHS)
    assert hosted.lengths == context.lengths
    for blocks, trees in (([5] * 4, None), ([5, 1, 3, 2], None), ([5, 5, 1, 4], [6, None, None, 3])):
        assert_same(propose(drafter, hosted, blocks, trees), propose(drafter, context, blocks, trees))


def test_a_shared_prefix_brings_the_draft_context_along():
    spec = SPECS["first"]
    drafter, pool = make(spec)
    first = taps_of(spec, 0, 9)
    second = torch.cat([first[:6], taps_of(spec, 1, 4)])
    table = torch.tensor([[*range(1, 10), 0], [*range(1, 7), 30, 31, 32, 33]])
    pool.write(first, torch.arange(9), table[0, :9])
    pool.write(second[6:], torch.arange(6, 10), table[1, 6:])
    context = drafter.start()
    drafter.join(context, [0] * 9, first)
    drafter.join(context, [0] * 10, second)
    assert_same(propose(drafter, pool.rows(table, [9, 10]), [5, 5]), propose(drafter, context, [5, 5]))


def test_a_slot_that_changes_hands_says_what_its_new_owner_wrote():
    spec = SPECS["first"]
    drafter, pool = make(spec)
    slots = torch.arange(1, 10)
    pool.write(taps_of(spec, 0, 9), torch.arange(9), slots)
    pool.write(taps_of(spec, 1, 9), torch.arange(9), slots.flip(0))
    hosted = pool.rows(slots.flip(0)[None], [9])
    assert_same(propose(drafter, hosted, [5]), propose(drafter, ours(drafter, spec, [1], [9]), [5]))


def test_rows_can_be_left_out():
    spec = SPECS["first"]
    drafter, pool = make(spec)
    table = slots_for(LENGTHS)
    for request, length in enumerate(LENGTHS):
        pool.write(taps_of(spec, request, length), torch.arange(length), table[request, :length].long())
    hosted = pool.rows(table, LENGTHS)
    hosted.keep([3, 1])
    context = ours(drafter, spec, [3, 1], [9, 17])
    assert_same(propose(drafter, hosted, [5, 5]), propose(drafter, context, [5, 5]))


def test_its_size_is_that_of_the_engines_slots():
    spec = SPECS["first"]
    _, pool = make(spec)
    assert pool.num_slots == SLOTS
    assert pool.nbytes == 2 * spec.num_layers * SLOTS * spec.num_kv_heads * spec.head_dim * 4


def test_a_window_must_hold_something():
    spec = SPECS["first"]
    drafter = BlockDrafter(random_checkpoint(spec), StubTarget(spec), draft_window=0)
    with pytest.raises(SettingsError, match="draft_window is 0"):
        drafter.host(SLOTS)
