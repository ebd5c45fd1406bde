"""Reads the outputs of single decoder layers while the model runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def tapped(layers: Sequence[nn.Module], taps: Sequence[int]) -> Iterator[list[Tensor]]:
    """Within it, a forward fills the list with one [B, N, D] a tap, in the order of `taps`.

    Only the layers named get a hook, and only for as long as this lasts.
    """
    outputs: dict[int, Tensor] = {}
    found: list[Tensor] = []

    def hook(tap: int) -> Any:
        def read(module: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]) -> None:
            outputs[tap] = output if isinstance(output, Tensor) else output[0]

        return read

    handles = [layers[tap].register_forward_hook(hook(tap)) for tap in set(taps)]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
    found += [outputs[tap] for tap in taps]


def side_by_side(found: Sequence[Tensor]) -> Tensor | None:
    """[B, N, P * D] of P taps; `None` of none."""
    return torch.cat(list(found), -1) if found else None
