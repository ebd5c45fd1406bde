"""The Triton kernels do what their references do. Run by `test_triton.py`, in a process of its own."""

import pytest
import torch
from test_block_attention import SHAPES, WINDOWS, case

from dflash_kernels.block_attention import block_attention
from dflash_kernels.dynamic_conv import dynamic_conv
from dflash_kernels.rms_norm import rms_norm
from dflash_kernels.rope import rope, rope_angles
from dflash_kernels.write_context import write_context

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Memory that a kernel forgets to write is NaN."""
    empty = torch.empty

    def poison(*args, **given):
        made = empty(*args, **given)
        return made.fill_(float("nan")) if is_float(made) else made

    monkeypatch.setattr(torch, "empty", poison)


def as_good(op, reference, *arguments, **named):
    """The kernel is hardly further from float32 than torch in the same precision."""
    exact = reference(*(each.float() if is_float(each) else each for each in arguments), **named)
    torchs = reference(*arguments, **named).float()
    found = op(*arguments, **named).float()
    dtype = next(each.dtype for each in arguments if is_float(each))
    # sums in another order; and the interpreter cuts 16-bit results off, where a GPU rounds them
    rounding = 8 * torch.finfo(torch.float32).eps + (torch.finfo(dtype).eps if DEVICE == "cpu" else 0)
    worst = 2 * (torchs - exact).abs().max() + rounding * exact.abs().max()
    assert found.shape == exact.shape
    assert (found - exact).abs().max() <= worst


def is_float(value):
    return torch.is_tensor(value) and value.is_floating_point()


def with_impl(op, impl):
    return lambda *arguments, **named: op(*arguments, impl=impl, **named)


def pair(op):
    return with_impl(op, "triton"), with_impl(op, "reference")


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (3, 70), (2, 5, 3, 48)], ids=str)
def test_rms_norm(shape, dtype):
    as_good(*pair(rms_norm), random(*shape, dtype=dtype), random(shape[-1], seed=1, dtype=dtype), 1e-5)


def test_rms_norm_of_strided_rows_and_of_a_weight_a_layer():
    packed = random(6, 4, 2, 3, 24)
    as_good(*pair(rms_norm), packed[:, :, 1], random(4, 1, 24, seed=1), 1e-5)
    as_good(*pair(rms_norm), random(2, 24, 3).transpose(1, 2), random(24, seed=1), 1e-5)
    as_good(*pair(rms_norm), random(3, 70), random(1, seed=1), 1e-5)
    assert rms_norm(random(0, 8), random(8), 1e-5, impl="triton").shape == (0, 8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "size"), [(1, 2), (3, 12), (9, 64)])
def test_rope(heads, size, dtype):
    frequencies = torch.rand(size // 2, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    cos, sin = rope_angles(torch.arange(10, device=DEVICE).view(2, 5), frequencies)
    x = random(2, 5, 2, heads, size, dtype=dtype)[:, :, 1]
    as_good(*pair(rope), x, cos, sin)
    as_good(*pair(rope), x[:, :3], cos[:, :3], sin[:, :3])


@pytest.mark.parametrize("dtype", DTYPES)
def test_write_context(dtype):
    pools = [random(3, 11, 2, 20, seed=seed, dtype=dtype) for seed in (1, 2)]
    packed = (random(5, 3, 2, 2, 20, seed=seed, dtype=dtype) for seed in (3, 4))
    k, v = (each[:, :, 1].transpose(0, 1) for each in packed)
    slots = torch.tensor([7, 0, 10, 3, 4], device=DEVICE)
    expected = [pool.clone() for pool in pools]
    write_context(*expected, slots, k, v, impl="reference")
    write_context(*pools, slots, k, v, impl="triton")
    assert all(torch.equal(one, other) for one, other in zip(pools, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 6, 3, 2), (2, 5, 12, 4, 2), (3, 7, 10, 1, 3)], ids=str)
def test_dynamic_conv(shape, dtype):
    batch, slots, width, group, size = shape
    dynamic = random(batch, slots, 2, size, width // group, seed=1, dtype=dtype)[:, :, 1]
    x, base = random(batch, slots, width, dtype=dtype), random(size, width, seed=2, dtype=dtype)
    as_good(*pair(dynamic_conv), x, dynamic, base)


@pytest.mark.parametrize(("window", "causal"), WINDOWS)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_block_attention(shape, ragged, window, causal):
    attended(*case(*shape, ragged=ragged), window=window, causal=causal)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 3])
def test_block_attention_of_leading_queries_with_sinks(queries, dtype):
    given, _, blocks = case(2, 5, 70, 6, 2, 20, ragged=True, queries=queries)
    given = [each.to(dtype) if is_float(each) else each for each in given]
    attended(given, None, blocks, sinks=random(6, seed=9, dtype=dtype))


def attended(given, _lengths, blocks, **named):
    """As `as_good`, of the slots that a row has: what the others attend to has no meaning."""
    given = [each.to(DEVICE) if torch.is_tensor(each) else each for each in given]
    real = torch.arange(given[0].shape[1]) < blocks[:, None]
    by_kernel, by_torch = pair(block_attention)
    named["scale"] = 0.3
    as_good(
        lambda *arguments, **rest: by_kernel(*arguments, **rest)[real],
        lambda *arguments, **rest: by_torch(*arguments, **rest)[real],
        *given,
        **named,
    )
