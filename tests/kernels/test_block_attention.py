"""Block attention sees exactly what the definition says, and nothing else."""

import pytest
import torch

from dflash_kernels.block_attention import block_attention

NAN = float("nan")


def by_definition(q, keys, values, positions, key_positions, real, scale, window, causal, sinks):
    """One row, one query and one head at a time, in float64."""
    out = torch.zeros_like(q, dtype=torch.float64)
    heads, kv_heads = q.shape[1], keys.shape[1]
    for index in range(q.shape[0]):
        for head in range(heads):
            scores, rows = [], []
            for key in range(len(keys)):
                distance = int(positions[index] - key_positions[key])
                hidden = (
                    not real[key]
                    or (causal and distance < 0)
                    or (window is not None and distance >= window)
                    or (window is not None and not causal and -distance >= window)
                )
                if not hidden:
                    kv = head * kv_heads // heads
                    scores.append(q[index, head].double() @ keys[key, kv].double() * scale)
                    rows.append(values[key, kv].double())
            if sinks is not None:
                scores.append(sinks[head].double())
                rows.append(torch.zeros_like(rows[0]))
            out[index, head] = torch.stack(scores).softmax(0) @ torch.stack(rows)
    return out


def case(batch, slots, context, heads, kv_heads, size, *, ragged, queries=None, seed=0):
    """Arguments whose pool is NaN wherever no row's context lies, and whose block is NaN past its length."""
    torch.manual_seed(seed)
    num_slots = batch * context + 7
    lengths = torch.randint(0, context + 1, (batch,)) if ragged else torch.full((batch,), context)
    blocks = torch.randint(1, slots + 1, (batch,)) if ragged else torch.full((batch,), slots)
    if ragged:
        lengths[0], blocks[-1] = context, slots
    table = torch.randperm(num_slots)[: batch * context].view(batch, context)
    used = table[torch.arange(context) < lengths[:, None]]
    pools = torch.full((2, num_slots, kv_heads, size), NAN)
    pools[:, used] = torch.randn(2, len(used), kv_heads, size)
    own = torch.randn(2, batch, slots, kv_heads, size)
    own[:, torch.arange(slots) >= blocks[:, None]] = NAN
    starts = torch.randint(0, 50, (batch,))
    positions = (starts + lengths)[:, None] + torch.arange(slots)
    q = torch.randn(batch, queries or slots, heads, size)
    ragged_lengths = (lengths, blocks) if ragged else (None, None)
    given = (q, *pools, table, starts, ragged_lengths[0], *own, positions, ragged_lengths[1])
    return given, lengths, blocks


SHAPES = [
    (1, 1, 1, 1, 1, 3),
    (1, 7, 0, 2, 1, 5),
    (1, 8, 13, 9, 3, 6),
    (3, 5, 63, 4, 4, 10),
    (4, 3, 15, 6, 2, 7),
]
WINDOWS = [(None, False), (None, True), (4, False), (4, True), (1, False), (200, False), (200, True)]


@pytest.mark.parametrize(("window", "causal"), WINDOWS)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_softmax_attention_over_the_visible_keys(shape, ragged, window, causal):
    given, lengths, blocks = case(*shape, ragged=ragged)
    q, k_pool, v_pool, table, starts, _, k, v, positions, _ = given
    sinks = torch.randn(shape[3]) if window == 4 else None
    out = block_attention(*given, scale=0.3, window=window, causal=causal, sinks=sinks)
    for row in range(shape[0]):
        count = int(lengths[row])
        keys = torch.cat([k_pool[table[row, :count]], k[row]])
        values = torch.cat([v_pool[table[row, :count]], v[row]])
        key_positions = torch.cat([starts[row] + torch.arange(count), positions[row]])
        real = torch.cat([torch.ones(count), torch.arange(shape[1]) < blocks[row]]).bool()
        block = int(blocks[row])
        expected = by_definition(
            q[row, :block], keys, values, positions[row], key_positions, real, 0.3, window, causal, sinks
        )
        torch.testing.assert_close(out[row, :block].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("window", "causal"), WINDOWS)
def test_a_row_does_not_depend_on_the_rows_beside_it(window, causal):
    given, lengths, blocks = case(4, 6, 21, 4, 2, 8, ragged=True)
    q, k_pool, v_pool, table, starts, _, k, v, positions, _ = given
    together = block_attention(*given, scale=1.0, window=window, causal=causal)
    for row in range(4):
        count, block = int(lengths[row]), int(blocks[row])
        alone = block_attention(
            q[row : row + 1, :block],
            k_pool,
            v_pool,
            table[row : row + 1, :count],
            starts[row : row + 1],
            None,
            k[row : row + 1, :block],
            v[row : row + 1, :block],
            positions[row : row + 1, :block],
            None,
            scale=1.0,
            window=window,
            causal=causal,
        )
        torch.testing.assert_close(together[row, :block], alone[0], atol=1e-6, rtol=1e-5)


def test_leading_queries_alone_get_what_they_get_among_all():
    given, _, _ = case(2, 7, 11, 4, 2, 8, ragged=False)
    whole = block_attention(*given, scale=0.5, window=5, causal=True)
    few = block_attention(given[0][:, :3], *given[1:], scale=0.5, window=5, causal=True)
    torch.testing.assert_close(few, whole[:, :3])


def test_low_precision_is_as_good_as_its_inputs():
    """Sums are in float32: the result is the float32 result of the rounded inputs, rounded once."""
    given, _, _ = case(2, 5, 33, 4, 2, 16, ragged=False)
    low = [x.bfloat16() if x is not None and x.is_floating_point() else x for x in given]
    high = [x.float() if x is not None and x.is_floating_point() else x for x in low]
    expected = block_attention(*high, scale=0.25).bfloat16()
    assert torch.equal(block_attention(*low, scale=0.25), expected)


def test_a_sink_takes_weight_and_gives_nothing():
    given, _, _ = case(1, 3, 4, 2, 1, 6, ragged=False)
    without = block_attention(*given, scale=1.0)
    tiny = block_attention(*given, scale=1.0, sinks=torch.full((2,), -1e9))
    huge = block_attention(*given, scale=1.0, sinks=torch.full((2,), 1e9))
    torch.testing.assert_close(tiny, without)
    assert huge.abs().max() == 0
