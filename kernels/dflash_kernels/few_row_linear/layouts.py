"""Ways to lay out `x [n, in] @ W [out, in].T` on a CPU, which differ by far when n is small.

Weights stream from memory at the same speed for one row as for several, so a product of a few rows need not
cost more than that of one. Which layout comes near to that is a property of the machine and of its library.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

Kind = Literal["linear", "column", "sliced", "onednn", "mkl"]

SLICE = 64
"""Output features of a slice: a slice of the weight stays in a core's cache while all rows pass over it."""


@dataclass(frozen=True)
class Layout:
    """One way to compute the product.

    Attributes:
        kind: "linear" is torch's own; "column" multiplies from the left, `(W @ x.T).T`; "sliced" is a batch
            of products with `SLICE` output features each; "onednn" and "mkl" multiply by a copy of the weight
            in that library's own blocked format.
        rows: the number of rows that a packed copy is made for; 0 for the other kinds. MKL computes exactly
            so many, fewer are padded; oneDNN takes it as a hint.
    """

    kind: Kind
    rows: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"A layout is one of {', '.join(get_args(Kind))}, not {self.kind!r}.")
        if (self.rows > 0) != self.is_packed:
            raise ValueError(f"Layout {self.kind} with rows {self.rows}: only packed layouts name a number.")

    @property
    def is_packed(self) -> bool:
        """Whether it needs a copy of the weight."""
        return self.kind in ("onednn", "mkl")

    def serves(self, rows: int) -> bool:
        """Whether it can compute so many rows."""
        return self.kind != "mkl" or rows <= self.rows

    def __str__(self) -> str:
        return f"{self.kind}:{self.rows}" if self.is_packed else self.kind

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """The inverse of `str`. Raises ValueError for anything else."""
        kind, _, rows = text.partition(":")
        return cls(kind, int(rows) if rows else 0)  # type: ignore[arg-type]


LINEAR = Layout("linear")
COLUMN = Layout("column")
SLICED = Layout("sliced")


def available() -> tuple[Kind, ...]:
    """The kinds that this build of torch has."""
    kinds: list[Kind] = ["linear", "column", "sliced"]
    if torch.backends.mkldnn.is_available():
        kinds.append("onednn")
    if torch.backends.mkl.is_available():
        kinds.append("mkl")
    return tuple(kinds)


def pack(weight: Tensor, layout: Layout) -> Tensor | None:
    """The copy of a float32 CPU weight [out, in] that a layout multiplies by; `None` when it needs none.

    oneDNN's copy is as large as the weight, MKL's about twice as large.
    """
    if layout.kind == "onednn":
        return torch.ops.mkldnn._reorder_linear_weight(weight, layout.rows)  # type: ignore[no-any-return]
    if layout.kind == "mkl":
        return torch.ops.mkl._mkl_reorder_linear_weight(weight, layout.rows)  # type: ignore[no-any-return]
    return None


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout, packed: Tensor | None) -> Tensor:
    """See `dflash_kernels.few_row_linear.few_row_linear`."""
    if layout.kind == "linear":
        return F.linear(x, weight, bias)
    product = _PRODUCTS[layout.kind](x.reshape(-1, x.shape[-1]), weight, bias, layout, packed)
    return product.view(*x.shape[:-1], weight.shape[0])


def _column(x: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout, packed: Tensor | None) -> Tensor:
    rows = x.shape[0]
    if rows == 1:
        x = x.repeat(2, 1)  # a lone column is multiplied by a slower routine than two are
    product = (weight @ x.t().contiguous()).t()[:rows].contiguous()
    return product if bias is None else product.add_(bias)


def _sliced(x: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout, packed: Tensor | None) -> Tensor:
    count, rest = divmod(weight.shape[0], SLICE)
    if rest or count < 2:
        return F.linear(x, weight, bias)
    slices = weight.view(count, SLICE, weight.shape[1]).transpose(1, 2)
    product = torch.bmm(x.expand(count, -1, -1), slices)  # [count, rows, SLICE]
    product = product.transpose(0, 1).reshape(x.shape[0], weight.shape[0])
    return product if bias is None else product.add_(bias)


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout, packed: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")  # type: ignore[no-any-return]


def _mkl(x: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout, packed: Tensor | None) -> Tensor:
    rows = x.shape[0]
    if rows < layout.rows:
        x = F.pad(x, (0, 0, 0, layout.rows - rows))
    product: Tensor = torch.ops.mkl._mkl_linear(x, packed, weight, bias, layout.rows)
    return product[:rows]


_PRODUCTS: dict[Kind, Callable[[Tensor, Tensor, Tensor | None, Layout, Tensor | None], Tensor]] = {
    "column": _column,
    "sliced": _sliced,
    "onednn": _onednn,
    "mkl": _mkl,
}
