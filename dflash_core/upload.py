"""Small host values on their way to the device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(values: Tensor | NDArray[Any], device: torch.device | str) -> Tensor:
    """Host values as a tensor on the device, in their own shape and dtype.

    Nobody waits: from pinned memory the copy takes its turn on the device, where an ordinary one would first
    let the device finish what it is doing.
    """
    host = values if isinstance(values, Tensor) else torch.from_numpy(values)
    device = torch.device(device)
    if device.type == "cpu":
        return host
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)
