"""Linear layers that compute few rows in the layout that a table names."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash_core.fastpath.table import LayoutTable
from dflash_kernels.few_row_linear import few_row_linear
from dflash_kernels.few_row_linear.layouts import Layout


class FastLinear(nn.Linear):
    """An `nn.Linear` that shares the weight of the one it replaces.

    The layouts serve inference: while gradients are enabled, and where the weight was moved or cast to what
    they are not made for, the product is torch's own.
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
        self._layouts = tuple(layouts)
        self._qualified: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight
        rows = input.numel() // self.in_features
        layout = self._layouts[rows] if rows < len(self._layouts) else "linear"
        if layout == "linear" or torch.is_grad_enabled() or not self._qualifies(weight):
            return F.linear(input, weight, self.bias)
        return few_row_linear(input, weight, self.bias, layout)

    def _qualifies(self, weight: Tensor) -> bool:
        """Looked at once for each weight, since it costs as much as a small product."""
        if self.__dict__["_qualified"] is not weight:
            if not can_be_fast(self):
                return False
            self.__dict__["_qualified"] = weight  # past nn.Module, which would register a second parameter
        return True

    def _apply(self, fn: Any, recurse: bool = True) -> "FastLinear":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.__dict__["_qualified"] = None
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_qualified": None}


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

    Returns:
        how many layers were replaced.
    """
    replaced: dict[nn.Linear, FastLinear] = {}
    for parent, name, linear in list(fast_candidates(module)):
        layouts = table.layouts((linear.out_features, linear.in_features))
        if any(layout != "linear" for layout in layouts):
            if linear not in replaced:
                replaced[linear] = FastLinear(linear, layouts)
            setattr(parent, name, replaced[linear])
    return len(replaced)
