"""Every layout computes the same product as a plain linear layer."""

import pytest
import torch
from torch.nn import functional as F

from dflash_kernels.few_row_linear import few_row_linear
from dflash_kernels.few_row_linear.layouts import COLUMN, LINEAR, SLICED, Layout, available, pack

PACKED = [Layout(kind, rows) for kind in ("onednn", "mkl") if kind in available() for rows in (4, 8)]
LAYOUTS = [LINEAR, COLUMN, SLICED, *PACKED]


def _problem(rows, out, inner, bias, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inner, generator=generator)
    weight = torch.randn(out, inner, generator=generator)
    return x, weight, torch.randn(out, generator=generator) if bias else None


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("out", "inner"), [(1, 3), (7, 5), (64, 9), (96, 64), (130, 257), (192, 40)])
def test_a_layout_changes_the_way_and_not_the_result(layout, bias, out, inner):
    for rows in range(1, 9):
        if not layout.serves(rows):
            continue
        x, weight, offset = _problem(rows, out, inner, bias)
        packed = pack(weight, layout)
        exact = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
        ours = few_row_linear(x, weight, offset, layout, packed)
        plain = few_row_linear(x, weight, offset, layout, packed, impl="reference")
        # Both sum `inner` products in an order of their own: neither may be further from the truth than that.
        bound = 4 * inner**0.5 * torch.finfo(torch.float32).eps * exact.abs().clamp(min=1).max()
        assert (plain - exact).abs().max() <= bound
        assert (ours - exact).abs().max() <= bound
        assert ours.shape == plain.shape
        assert ours.is_contiguous()


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout.serves(6)], ids=str)
def test_rows_are_the_product_of_the_leading_dimensions(layout):
    x, weight, _ = _problem(6, 11, 12, False)
    packed = pack(weight, layout)
    flat = few_row_linear(x, weight, None, layout, packed)
    folded = few_row_linear(x.view(2, 3, 12), weight, None, layout, packed)
    strided = few_row_linear(x.view(3, 2, 12).transpose(0, 1), weight, None, layout, packed)
    assert torch.equal(folded, flat.view(2, 3, 11))
    torch.testing.assert_close(strided, flat.view(3, 2, 11).transpose(0, 1))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_row_does_not_depend_on_the_rows_beside_it(layout):
    """NaN in one row would spread to the others if padding or packing mixed them."""
    x, weight, offset = _problem(4, 24, 40, True)
    packed = pack(weight, layout)
    clean = few_row_linear(x, weight, offset, layout, packed)
    x[2] = float("nan")
    dirty = few_row_linear(x, weight, offset, layout, packed)
    assert torch.equal(dirty[[0, 1, 3]], clean[[0, 1, 3]])
    assert dirty[2].isnan().all()


def test_a_layout_is_written_and_read_back():
    for layout in LAYOUTS:
        assert Layout.parse(str(layout)) == layout


@pytest.mark.parametrize("text", ["", "rowwise", "mkl", "mkl:0", "mkl:-4", "linear:8", "mkl:many"])
def test_what_is_not_a_layout_is_refused(text):
    with pytest.raises(ValueError, match=r"[Ll]ayout|invalid literal"):
        Layout.parse(text)


def test_mkl_computes_at_most_the_rows_it_was_packed_for():
    assert Layout("mkl", 4).serves(4)
    assert not Layout("mkl", 4).serves(5)
    assert Layout("onednn", 4).serves(100)
