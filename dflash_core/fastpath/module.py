"""Linear layers that compute few rows in the layout that a table names."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dflash_core.fastpath.table import LayoutTable, Shape
from dflash_kernels.few_row_linear import few_row_linear
from dflash_kernels.few_row_linear.layouts import Layout


class FastLinear(nn.Linear):
    """An `nn.Linear` that shares the weight of the one it replaces.

    The layouts serve inference: while gradients are enabled, and where the weight was moved or cast to what
    they are not made for, the product is torch's own.
    """

    def __init__(self, linear: nn.Linear, layouts: Sequence[Layout], narrow: bool = False) -> None:
        """
        Args:
            linear: one of `fast_candidates`.
            layouts: entry n is for n rows; more rows than there are entries are torch's own.
            narrow: the weight loses nothing in bfloat16, so the compiled layout is given a copy in that.
        """
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.train(linear.training)
        self._layouts = tuple(layouts)
        self._qualified: tuple[Tensor, Tensor | None, tuple[int, int]] | None = None
        self._narrow: Tensor | None = None
        if narrow and "compiled" in layouts and self._qualifies(linear.weight):
            self._narrow = linear.weight.detach().bfloat16()

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight
        rows = input.numel() // self.in_features
        layout = self._layouts[rows] if rows < len(self._layouts) else "linear"
        plain = layout == "linear" or torch.is_grad_enabled() or not self._takes(input)
        if plain or not self._qualifies(weight):
            return F.linear(input, weight, self.bias)
        if layout == "compiled" and self._narrow is not None:
            weight = self._narrow
        return few_row_linear(input, weight, self.bias, layout)

    def _takes(self, x: Tensor) -> bool:
        """Whether an input is what the layouts are made for; of anything else torch says what is wrong."""
        fits = x.dtype == torch.float32 and x.is_cpu and x.shape[-1:] == (self.in_features,)
        return fits and not torch.is_autocast_enabled("cpu")

    def _qualifies(self, weight: Tensor) -> bool:
        """Looked at once for each weight and change of it, since it costs as much as a small product."""
        known, now = self._qualified, (weight._version, weight.data_ptr())
        if known is None or known[0] is not weight or known[1] is not self.bias or known[2] != now:
            self._forget()
            if not can_be_fast(self):
                return False
            self._qualified = weight, self.bias, now  # a tuple: nn.Module would register a parameter
        return True

    def _forget(self) -> None:
        self._qualified = self._narrow = None

    def _apply(self, fn: Any, recurse: bool = True) -> "FastLinear":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._forget()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_qualified": None, "_narrow": None}


def can_be_fast(linear: nn.Linear) -> bool:
    """Whether the layouts are made for this weight and bias: float32, dense and contiguous, on the CPU."""
    weight, bias = linear.weight, linear.bias
    fits = bias is None or (
        bias.dtype == torch.float32
        and bias.device.type == "cpu"
        and bias.is_contiguous()
        and bias.shape == weight.shape[:1]
    )
    return (
        fits
        and weight.dtype == torch.float32
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


def apply_fast_path(module: nn.Module, table: LayoutTable, narrow: Collection[Shape] = ()) -> int:
    """Replace the linear layers for whose weights the table has a layout; nothing else of the module changes.

    Args:
        narrow: shapes whose weights bfloat16 holds exactly.

    Returns:
        how many layers were replaced.
    """
    replaced: dict[nn.Linear, FastLinear] = {}
    for parent, name, linear in list(fast_candidates(module)):
        shape = linear.out_features, linear.in_features
        layouts = table.layouts(shape)
        if any(layout != "linear" for layout in layouts):
            if linear not in replaced:
                replaced[linear] = FastLinear(linear, layouts, shape in narrow)
            setattr(parent, name, replaced[linear])
    return len(replaced)
