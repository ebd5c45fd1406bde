"""The context pool never loses, shares or leaks a slot, and shows each row its own newest positions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from drafter_spec import small_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.drafter.pool import ContextPool
from dflash_core.errors import RequestError, SettingsError
from dflash_core.spec import LayerSpec

MIXED = (LayerSpec(None, False), LayerSpec(5, True), LayerSpec(3, False), LayerSpec(5, False))


def make_pool(layers=MIXED, **options):
    pool = ContextPool(replace(small_spec(), layers=layers, num_kv_heads=1, head_dim=2), **options)
    for zone in pool.zones:
        zone.k.fill_(float("nan"))
    return pool


def append(pool, requests, counts):
    """Append `counts[b]` positions a row; a key says whose it is: (request, position), the layer added."""
    old, layers = pool.lengths, sum(len(zone.layers) for zone in pool.zones)
    rows = np.repeat(np.arange(len(counts)), counts)
    nth = np.concatenate([np.arange(count) for count in counts]) if counts else np.zeros(0, np.int64)
    positions = old[rows] + nth
    names = torch.tensor([[requests[row], at] for row, at in zip(rows, positions, strict=True)])
    k = (names.view(1, -1, 1, 2) + torch.arange(layers).view(-1, 1, 1, 1) * 1000).float()
    pool.append(rows, positions, old + np.asarray(counts, dtype=np.int64), k, -k)


def check(pool, requests, lengths):
    """Each row shows its own newest positions in every layer, and no slot is another's or lost."""
    read = pool.read()
    assert read.anchors.tolist() == lengths
    for zone, owner in zip(read.zones, pool.zones, strict=True):
        assert owner.allocated + owner.free == owner.num_slots
        seen = []
        for row, length in enumerate(lengths):
            start = int(zone.view.starts[row])
            slots = zone.view.slots[row, : length - start]
            assert zone.view.lengths is None or zone.view.lengths[row] == length - start
            seen += slots.tolist()
            for index, layer in enumerate(zone.layers):
                keys = zone.k[index, slots, 0]
                names = [[requests[row], at] for at in range(start, length)]
                assert (keys - 1000 * layer).tolist() == names
                assert torch.equal(zone.v[index, slots, 0], -keys)
        assert len(set(seen)) == len(seen) <= owner.allocated


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_sequence_of_operations_keeps_every_row_intact(data):
    pool = make_pool(draft_window=data.draw(st.sampled_from([None, 2, 4, 100])))
    requests, lengths, born = [], [], 0
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["join", "append", "crop", "keep"]))
        if action == "join":
            pool.add_row()
            requests, lengths, born = [*requests, born], [*lengths, 0], born + 1
        elif action == "append" and requests:
            counts = [data.draw(st.integers(0, 9)) for _ in requests]
            append(pool, requests, counts)
            lengths = [length + count for length, count in zip(lengths, counts, strict=True)]
        elif action == "crop" and requests:
            row = data.draw(st.integers(0, len(requests) - 1))
            lengths[row] = data.draw(st.integers(0, lengths[row]))
            pool.crop(row, lengths[row])
        elif action == "keep":
            stay = data.draw(st.integers(0, len(requests)))
            rows = data.draw(st.permutations(range(len(requests))))[:stay]
            pool.keep_rows(rows)
            requests, lengths = [requests[row] for row in rows], [lengths[row] for row in rows]
        assert pool.lengths.tolist() == lengths
        if requests:
            check(pool, requests, lengths)
    pool.keep_rows([])
    assert all(zone.free == zone.num_slots for zone in pool.zones)


def test_layers_that_keep_equally_much_share_a_zone():
    def zones(**options):
        return [(zone.layers, zone.keep) for zone in make_pool(**options).zones]

    assert zones() == [((0,), None), ((1, 3), 5), ((2,), 3)]
    assert zones(draft_window=4) == [((0, 1, 3), 4), ((2,), 3)]


@pytest.mark.parametrize("window", [1, 4, 7])
def test_a_window_shows_the_last_positions_and_holds_no_more_slots(window):
    pool = make_pool(draft_window=window)
    pool.add_row()
    for count in (3, 1, 20, 1, 2):
        append(pool, [0], [count])
        length = int(pool.lengths[0])
        for zone, read in zip(pool.zones, pool.read().zones, strict=True):
            assert read.view.slots.shape[1] == min(length, zone.keep)
            assert int(read.view.starts[0]) == max(0, length - zone.keep)
            assert zone.allocated == min(length, zone.keep)
        check(pool, [0], [length])


def test_a_cropped_ring_shows_no_position_that_it_has_overwritten():
    pool = make_pool((LayerSpec(4, False),))
    pool.add_row()
    append(pool, [0], [10])  # positions 6 to 9 are there
    pool.crop(0, 8)
    assert pool.read().zones[0].view.starts.tolist() == [6]
    assert pool.read().zones[0].view.slots.shape == (1, 2)
    append(pool, [0], [3])
    assert pool.read().zones[0].view.starts.tolist() == [7]
    check(pool, [0], [11])


def test_cropping_and_leaving_move_nothing_and_free_slots():
    pool = make_pool((LayerSpec(None, False),))
    zone = pool.zones[0]
    for _ in range(2):
        pool.add_row()
    append(pool, [0, 1], [6, 4])
    before, storage = zone.k.clone(), zone.k.data_ptr()
    pool.crop(0, 2)
    assert (zone.allocated, zone.free) == (6, zone.num_slots - 6)
    pool.keep_rows([1])
    assert (zone.allocated, zone.free) == (4, zone.num_slots - 4)
    assert zone.k.data_ptr() == storage
    torch.testing.assert_close(zone.k, before, equal_nan=True, rtol=0, atol=0)


def test_growing_keeps_what_is_there_up_to_the_limit_and_then_says_so():
    pool = make_pool((LayerSpec(None, False),), max_slots=3000)
    for _ in range(2):
        pool.add_row()
    append(pool, [0, 1], [700, 5])
    append(pool, [0, 1], [0, 1100])
    assert pool.zones[0].num_slots == 2048
    check(pool, [0, 1], [700, 1105])
    append(pool, [0, 1], [1000, 0])
    assert pool.zones[0].num_slots == 3000
    with pytest.raises(RequestError, match=r"3001 slots.*max_context_slots is 3000"):
        append(pool, [0, 1], [196, 0])
    check(pool, [0, 1], [1700, 1105])


def test_a_view_of_some_rows_is_theirs():
    pool = make_pool()
    for _ in range(3):
        pool.add_row()
    append(pool, [0, 1, 2], [9, 2, 6])
    whole, some = pool.read(), pool.read(np.array([2, 0]))
    assert some.anchors.tolist() == [6, 9]
    for zone, part in zip(whole.zones, some.zones, strict=True):
        for new, old in enumerate([2, 0]):
            count = int(zone.view.lengths[old]) if zone.view.lengths is not None else zone.view.slots.shape[1]
            assert part.view.starts[new] == zone.view.starts[old]
            assert torch.equal(part.view.slots[new, :count], zone.view.slots[old, :count])


def test_the_pool_has_a_dtype_of_its_own():
    pool = make_pool(dtype=torch.bfloat16)
    assert {zone.k.dtype for zone in pool.zones} == {zone.v.dtype for zone in pool.zones} == {torch.bfloat16}
    assert pool.zones[0].nbytes == 2 * 2 * pool.zones[0].k.numel()


@pytest.mark.parametrize("options", [{"draft_window": 0}, {"draft_window": -3}, {"max_slots": 0}])
def test_senseless_sizes_are_refused(options):
    with pytest.raises(SettingsError, match="at least 1"):
        make_pool(**options)


def test_cropping_beyond_the_end_is_refused():
    pool = make_pool()
    pool.add_row()
    append(pool, [0], [3])
    with pytest.raises(ValueError, match="cannot be cropped to 4"):
        pool.crop(0, 4)
