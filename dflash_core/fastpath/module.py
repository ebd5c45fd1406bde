"""Linear layers that compute few rows in the layout that a table names."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash_core.fastpath.table import LayoutTable
from dflash_kernels.few_row_linear import few_row_linear
from dflash_kernels.few_row_linear.layouts import LINEAR, Layout, pack

STALE = -1
"""A version that no weight has."""


class FastLinear(nn.Linear):
    """An `nn.Linear` that shares the weight of the one it replaces, and keeps packed copies beside it.

    The layouts serve inference: while gradients are enabled, the product is torch's own. After the weight
    was changed in place, moved or cast, it is packed again, or left to torch where it no longer qualifies.
    """

    def __init__(self, linear: nn.Linear, layouts: Sequence[Layout]) -> None:
        """
        Args:
            linear: one of `fast_candidates`.
            layouts: entry n is for n rows; more rows than there are entries are torch's own.
        """
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.train(linear.training)
        self._layouts = tuple(LINEAR if layout == LINEAR else layout for layout in layouts)
        self._packed: dict[Layout, Tensor | None] = {}
        self._packed_version = STALE
        self._pack()

    def forward(self, input: Tensor) -> Tensor:
        rows = input.numel() // self.in_features
        layout = self._layouts[rows] if rows < len(self._layouts) else LINEAR
        if layout is LINEAR or torch.is_grad_enabled():
            return F.linear(input, self.weight, self.bias)
        if self.weight._version != self._packed_version:
            self._pack()
        if layout not in self._packed:
            return F.linear(input, self.weight, self.bias)
        return few_row_linear(input, self.weight, self.bias, layout, self._packed[layout])

    @property
    def extra_bytes(self) -> int:
        """Memory of the packed copies."""
        return sum(packed_bytes(self.weight, layout) for layout in self._packed)

    def _pack(self) -> None:
        wanted = set(self._layouts) - {LINEAR} if can_be_fast(self) else set()
        with torch.no_grad():
            self._packed = {layout: pack(self.weight.detach(), layout) for layout in wanted}
        self._packed_version = self.weight._version

    def _apply(self, fn: Any, recurse: bool = True) -> "FastLinear":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._packed_version = STALE
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": {}, "_packed_version": STALE}  # a library's format has no copy


def packed_bytes(weight: Tensor, layout: Layout) -> int:
    """Memory of a packed copy: oneDNN's is as large as the weight, MKL's twice as large."""
    copies = {"onednn": 1, "mkl": 2}
    return copies.get(layout.kind, 0) * weight.numel() * weight.element_size()


def can_be_fast(linear: nn.Linear) -> bool:
    """Whether the layouts are made for this weight: float32, dense and contiguous, on the CPU."""
    weight = linear.weight
    return (
        weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.layout == torch.strided
        and weight.is_contiguous()
        and not weight.is_inference()
    )


def fast_candidates(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Plain linear layers that can be replaced: parent, name and layer, in order.

    Subclasses (quantised layers, adapters) and layers with hooks of their own do something else as well
    and are left alone.
    """
    for parent in module.modules():
        for name, child in parent._modules.items():  # with those that are in several places, at each
            if type(child) is nn.Linear and not _has_hooks(child) and can_be_fast(child):
                yield parent, name, child


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def apply_fast_path(module: nn.Module, table: LayoutTable) -> int:
    """Replace the linear layers for whose weights the table has a layout; nothing else of the module changes.

    Costs the memory of the packed copies that the table asks for (`FastLinear.extra_bytes`).

    Returns:
        how many layers were replaced.
    """
    replaced: dict[nn.Linear, FastLinear] = {}
    for parent, name, linear in list(fast_candidates(module)):
        layouts = table.layouts((linear.out_features, linear.in_features))
        if any(layout != LINEAR for layout in layouts):
            if linear not in replaced:
                replaced[linear] = FastLinear(linear, layouts)
            setattr(parent, name, replaced[linear])
    return len(replaced)
