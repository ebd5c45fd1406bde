"""From canonical tensors to modules."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dflash_core.checkpoint.base import DraftCheckpoint
from dflash_core.errors import CheckpointError
from dflash_kernels.rms_norm import rms_norm


class Weights:
    """Canonical tensors by name, in the network's dtype and on its device."""

    def __init__(self, checkpoint: DraftCheckpoint, dtype: torch.dtype, device: torch.device) -> None:
        self._tensors: Mapping[str, Tensor] = checkpoint.tensors
        self._where = checkpoint.path or "the draft checkpoint"
        self.dtype = dtype
        self.device = device

    def __call__(self, name: str) -> Tensor:
        """Raises CheckpointError when there is no such tensor."""
        if name not in self._tensors:
            raise CheckpointError(
                f"{self._where}: tensor {name} is missing, although the config says that it is there."
            )
        return self._tensors[name].to(self.device, self.dtype)

    def rows(self, *names: str) -> Tensor:
        """Several tensors stacked along the first dimension."""
        return torch.cat([self(name) for name in names])


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A frozen linear layer around tensors that exist already; nothing is copied or initialised."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
    layer.weight = frozen(weight)
    if bias is not None:
        layer.bias = frozen(bias)
    return layer


def frozen(tensor: Tensor) -> nn.Parameter:
    """A parameter that no optimiser touches."""
    return nn.Parameter(tensor, requires_grad=False)


class RMSNorm(nn.Module):
    """Norm over the last dimension of `x` with a weight that is broadcast to it."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = frozen(weight)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
