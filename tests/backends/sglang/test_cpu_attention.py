"""The CPU platform's attention against dense attention, in every mode: what sees what, and nothing else."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("sglang", reason="SGLang is in an environment of its own; see `make test-sglang`")

HEADS, KV_HEADS, SIZE, SLOTS = 6, 2, 8, 64


class Pool:
    """Keys and values by slot, poisoned where nobody has written."""

    def __init__(self):
        self.k = torch.full((SLOTS, KV_HEADS, SIZE), float("nan"))
        self.v = self.k.clone()

    def set_kv_buffer(self, layer, where, k, v):
        self.k[where.loc if hasattr(where, "loc") else where[0]] = k
        self.v[where.loc if hasattr(where, "loc") else where[0]] = v

    def get_key_buffer(self, index):
        return self.k

    def get_value_buffer(self, index):
        return self.v


def layer(window=-1, cap=0.0):
    from sglang.srt.layers.radix_attention import AttentionType

    return SimpleNamespace(
        **{"layer_id": 0, "tp_q_head_num": HEADS, "tp_k_head_num": KV_HEADS, "qk_head_dim": SIZE},
        **{"v_head_dim": SIZE, "scaling": SIZE**-0.5, "logit_cap": cap, "sliding_window_size": window},
        **{"is_cross_attention": False, "attn_type": AttentionType.DECODER},
    )


def batch(mode, prefixes, counts, table, **more):
    """A forward over requests with `prefixes` older keys and `counts` new ones."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    mode = ForwardMode[mode]
    lengths = prefixes if mode.is_target_verify() else [p + c for p, c in zip(prefixes, counts, strict=True)]
    slots = [table[row, p : p + c] for row, (p, c) in enumerate(zip(prefixes, counts, strict=True))]
    return SimpleNamespace(
        forward_mode=mode,
        req_pool_indices=torch.arange(len(prefixes)),
        seq_lens=torch.tensor(lengths),
        extend_seq_lens=torch.tensor(counts),
        extend_prefix_lens=torch.tensor(prefixes),
        out_cache_loc=torch.cat(slots),
        **more,
    )


def dense(q, k, v, visible, cap):
    """One request's attention, written out."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = torch.einsum("nhd,thd->hnt", q, k) * SIZE**-0.5
    if cap:
        scores = (scores / cap).tanh() * cap
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hnt,thd->nhd", weights, v)


PARENTS = [-1, 0, 0, 1, 3]
DEPTHS = [0, 1, 1, 2, 3]


def ancestors():
    seen = torch.eye(5, dtype=torch.bool)
    for node, parent in enumerate(PARENTS):
        if parent >= 0:
            seen[node] |= seen[parent]
    return seen


@pytest.mark.parametrize("cap", [0.0, 2.0])
@pytest.mark.parametrize("window", [-1, 3])
@pytest.mark.parametrize("mode", ["EXTEND", "DECODE", "chain", "tree"])
def test_a_token_sees_what_it_should(mode, window, cap):
    from dflash_backends.sglang.cpu.attention import TorchAttention

    generator = torch.Generator().manual_seed(1)
    prefixes = [7, 0, 4] if mode == "EXTEND" else [7, 2, 4]
    counts = {"EXTEND": [3, 6, 1], "DECODE": [1, 1, 1]}.get(mode, [5, 5, 5])
    order = torch.randperm(SLOTS - 1, generator=generator)[:60] + 1
    table = order.view(3, 20)
    pool = Pool()
    runner = SimpleNamespace(
        device="cpu", req_to_token_pool=SimpleNamespace(req_to_token=table), token_to_kv_pool=pool
    )
    backend = TorchAttention(runner)
    older = [torch.randn(2, p, KV_HEADS, SIZE, generator=generator) for p in prefixes]
    for row, (p, kv) in enumerate(zip(prefixes, older, strict=True)):
        pool.k[table[row, :p]], pool.v[table[row, :p]] = kv
    more, seen = {}, None
    if mode in ("chain", "tree"):
        seen = ancestors() if mode == "tree" else torch.ones(5, 5, dtype=torch.bool).tril()
        flat = [torch.cat([torch.ones(5, p, dtype=torch.bool), seen], 1).flatten() for p in prefixes]
        mask = torch.cat(flat) if mode == "tree" else None
        more["spec_info"] = SimpleNamespace(draft_token_num=5, custom_mask=mask)
    forward = batch("TARGET_VERIFY" if more else mode, prefixes, counts, table, **more)
    total = sum(counts)
    q = torch.randn(total, HEADS * SIZE, generator=generator)
    k, v = torch.randn(2, total, KV_HEADS, SIZE, generator=generator)
    backend.init_forward_metadata(forward)
    call = backend.forward_decode if mode == "DECODE" else backend.forward_extend
    out = call(q, k, v, layer(window, cap), forward).view(total, HEADS, SIZE)
    begin = 0
    for p, c, kv in zip(prefixes, counts, older, strict=True):
        new = slice(begin, begin + c)
        begin += c
        inside = torch.ones(c, c, dtype=torch.bool).tril() if seen is None else seen
        positions = p + (torch.tensor(DEPTHS) if mode == "tree" else torch.arange(c))
        visible = torch.cat([torch.ones(c, p, dtype=torch.bool), inside], 1)
        if window > 0:
            keys = torch.cat([torch.arange(p), positions])
            visible &= keys >= positions[:, None] - window
        expected = dense(
            q.view(total, HEADS, SIZE)[new],
            torch.cat([kv[0], k[new]]),
            torch.cat([kv[1], v[new]]),
            visible,
            cap,
        )
        torch.testing.assert_close(out[new], expected, atol=1e-5, rtol=1e-4)


def test_what_it_cannot_do_is_refused():
    from dflash_backends.sglang.cpu.attention import refuse
    from dflash_core.errors import UnsupportedError

    refuse(layer(), {"sinks": None})
    with pytest.raises(UnsupportedError, match="sinks"):
        refuse(layer(), {"sinks": torch.zeros(1)})
