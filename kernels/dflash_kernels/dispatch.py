"""How an op finds its implementation: by the device of its tensors, unless the caller says otherwise."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

from torch import Tensor

Impl = Literal["auto", "reference", "triton", "device", "compiled", "fused", "host"]
F = TypeVar("F", bound=Callable[..., object])


def choose(op: str, impl: Impl, probe: Tensor, available: Mapping[str, F]) -> F:
    """Pick one of an op's implementations.

    Args:
        op: name of the op, for the message.
        impl: "auto" takes Triton for CUDA tensors where the op has it, else what torch does there in few
            kernels ("device"); the reference elsewhere. An op that has something faster for some arguments
            on the CPU ("compiled" in C, "fused" by torch, or "host" in Python) looks at them itself.
        probe: a tensor argument of the call; only its device is looked at.
        available: implementations by name; "reference" is always there.

    Raises:
        ValueError: the op has no implementation of that name.
    """
    if impl == "auto":
        wanted: tuple[Impl, ...] = ("triton", "device") if probe.is_cuda else ()
        impl = next((name for name in wanted if name in available), "reference")
    if impl not in available:
        raise ValueError(f"{op} has no implementation {impl!r}. It has: {', '.join(sorted(available))}.")
    return available[impl]


def with_triton(op: str, available: Mapping[str, F]) -> Mapping[str, Callable[..., Any]]:
    """Add the function of the op's name in `dflash_kernels.<op>.kernel`, where Triton is installed.

    It is imported when first called: reading Triton takes longer than reading all of this.
    """

    def run(*arguments: Any, **named: Any) -> Any:
        return getattr(import_module(f"dflash_kernels.{op}.kernel"), op)(*arguments, **named)

    return {**available, "triton": run} if has_triton() else available


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None
