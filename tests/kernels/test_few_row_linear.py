"""Every layout computes the same product as a plain linear layer."""

import pytest
import torch
from torch.nn import functional as F

from dflash_kernels import native
from dflash_kernels.few_row_linear import compiled, few_row_linear
from dflash_kernels.few_row_linear.layouts import available


def _problem(rows, out, inner, bias, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inner, generator=generator)
    weight = torch.randn(out, inner, generator=generator)
    return x, weight, torch.randn(out, generator=generator) if bias else None


@pytest.mark.parametrize("layout", available())
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("out", "inner"), [(1, 3), (7, 5), (64, 9), (96, 64), (130, 257), (192, 40)])
def test_a_layout_changes_the_way_and_not_the_result(layout, bias, out, inner):
    for rows in (*range(1, 10), 19):
        x, weight, offset = _problem(rows, out, inner, bias)
        exact = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
        ours = few_row_linear(x, weight, offset, layout)
        plain = few_row_linear(x, weight, offset, layout, impl="reference")
        # Both sum `inner` products in an order of their own: neither may be further from the truth than that.
        bound = 4 * inner**0.5 * torch.finfo(torch.float32).eps * exact.abs().clamp(min=1).max()
        assert (plain - exact).abs().max() <= bound
        assert (ours - exact).abs().max() <= bound
        assert ours.shape == plain.shape
        assert ours.is_contiguous()


@pytest.mark.parametrize("layout", available())
def test_rows_are_the_product_of_the_leading_dimensions(layout):
    x, weight, _ = _problem(6, 11, 12, False)
    flat = few_row_linear(x, weight, None, layout)
    folded = few_row_linear(x.view(2, 3, 12), weight, None, layout)
    strided = few_row_linear(x.view(3, 2, 12).transpose(0, 1), weight, None, layout)
    assert torch.equal(folded, flat.view(2, 3, 11))
    torch.testing.assert_close(strided, flat.view(3, 2, 11).transpose(0, 1))


@pytest.mark.parametrize("layout", available())
def test_a_row_does_not_depend_on_the_rows_beside_it(layout):
    """NaN in one row would spread to the others if padding or packing mixed them."""
    x, weight, offset = _problem(4, 24, 40, True)
    clean = few_row_linear(x, weight, offset, layout)
    x[2] = float("nan")
    dirty = few_row_linear(x, weight, offset, layout)
    assert torch.equal(dirty[[0, 1, 3]], clean[[0, 1, 3]])
    assert dirty[2].isnan().all()


def forget():
    native.library.cache_clear()
    compiled.routine.cache_clear()


def test_the_compiled_product_is_kept_and_needs_no_compiler_again(monkeypatch, tmp_path):
    if compiled.routine() is None:
        pytest.skip("this machine has no C compiler")
    monkeypatch.setenv("DFLASH_CACHE_DIR", str(tmp_path))
    forget()
    try:
        assert compiled.routine() is not None
        (made,) = (tmp_path / "kernels").glob("*.so")
        whole = made.read_bytes()
        for damage in (b"", whole[:5000]):  # to load the latter would kill the process
            made.unlink()  # the old one is still mapped into this process
            made.write_bytes(damage)
            forget()
            assert compiled.routine() is not None
            assert made.read_bytes() == whole
        monkeypatch.setenv("CC", "cc -O1 ")
        forget()
        assert compiled.routine() is not None
        monkeypatch.setenv("DFLASH_CACHE_DIR", "/dev/null/nowhere")
        forget()
        assert compiled.routine() is None  # no other layout suffers
        monkeypatch.setenv("DFLASH_CACHE_DIR", str(tmp_path / "other"))
        monkeypatch.setenv("CC", "false")
        forget()
        assert compiled.routine() is None
        monkeypatch.delenv("CC")
        monkeypatch.setattr(native, "FLAGS", ("--no-such-flag",))
        forget()
        assert compiled.routine() is None
        monkeypatch.setattr(native.shutil, "which", lambda name: None)
        forget()
        assert "compiled" not in available()
    finally:
        monkeypatch.undo()
        forget()


@pytest.mark.skipif(compiled.routine() is None, reason="this machine has no C compiler")
@pytest.mark.parametrize(("out", "inner"), [(1, 3), (7, 5), (96, 64), (130, 257)])
def test_a_weight_in_bfloat16_is_the_same_weight(out, inner):
    for rows in (1, 2, 3, 4, 5, 9):
        x, weight, offset = _problem(rows, out, inner, True)
        short = weight.bfloat16()
        assert torch.equal(
            few_row_linear(x, short, offset, "compiled"), few_row_linear(x, short.float(), offset, "compiled")
        )
