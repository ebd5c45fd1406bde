"""The processes of a training run: one, or several that `accelerate launch` started, behind one face."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from dflash_core.errors import DFlashError, SettingsError, UnsupportedError

T = TypeVar("T")

PATIENCE = timedelta(days=7)
"""How long processes wait for the first one, which may compute hidden states all the while."""

CPU = torch.device("cpu")

SILENT = 1
"""Exit code of a process that ends because another has said why."""


class Processes(Protocol):
    """What a run needs to know of its processes. All of them must call `share` and `sum` in the same order.

    Attributes:
        device: of this process.
        rank, count: which process this is, from 0, of how many. Process 0 reports and writes.
    """

    @property
    def device(self) -> torch.device: ...
    @property
    def rank(self) -> int: ...
    @property
    def count(self) -> int: ...

    def share(self, make: Callable[[], T]) -> T:
        """What process 0 makes, in every process; it must be picklable, with tensors on the CPU."""
        ...

    def sum(self, value: Tensor) -> Tensor:
        """The sum over processes, bit by bit the same in each of them."""
        ...


@dataclass(frozen=True)
class Alone:
    """The only process."""

    device: torch.device = CPU
    rank: int = 0
    count: int = 1

    def share(self, make: Callable[[], T]) -> T:
        return make()

    def sum(self, value: Tensor) -> Tensor:
        return value


class Together:
    """One of several processes, through an `accelerate.Accelerator`.

    Gradients are summed by the trainer, parameter by parameter, once an optimiser step. A wrapper for
    distributed training would take their mean, whatever weight each process has, and wants every weight to
    be used within the forward, where those of heads are not.
    """

    def __init__(self, accelerator: Any) -> None:
        self.device: torch.device = accelerator.device
        self.rank: int = accelerator.process_index
        self.count: int = accelerator.num_processes
        self._accelerator = accelerator

    def share(self, make: Callable[[], T]) -> T:
        from accelerate.utils import broadcast_object_list

        box = [make() if self.rank == 0 else None]
        with _reachable():
            broadcast_object_list(box)
        return box[0]  # type: ignore[return-value]

    def sum(self, value: Tensor) -> Tensor:
        with _reachable():
            found: Tensor = self._accelerator.reduce(value, "sum")
        return found


@contextmanager
def joined(device: str | None) -> Iterator[Processes]:
    """The processes of this run, for as long as it lasts; of one that fails only the first to do so speaks.

    Args:
        device: "cpu", "cuda" or "cuda:1"; a GPU where there is one when `None`.

    Raises:
        SettingsError: there is no such device, or it is one for several processes.
        DFlashError: another process is gone.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Alone(_device(device))
        return
    with _one_voice():
        accelerator = _accelerator(_device(device))
        yield Together(accelerator)
        accelerator.end_training()


def anywhere(processes: Processes, here: bool) -> bool:
    """Whether something is so in any of the processes, which so agree on it."""
    return bool(processes.sum(torch.tensor(float(here), device=processes.device)))


def alike(processes: Processes, number: int) -> bool:
    """Whether all processes have the same number, which must not be negative."""
    squares = processes.sum(torch.tensor([number, number * number], device=processes.device)).tolist()
    return bool(squares[0] ** 2 == processes.count * squares[1])


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise SettingsError(f"device is {name!r}; it must be cpu, cuda, or a certain GPU, e.g. cuda:1.")
    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise SettingsError(f"device is {name!r}, but torch sees {count} GPUs here; choose another, or cpu.")
    return device


def _accelerator(device: torch.device) -> Any:
    if ":" in str(device):
        raise SettingsError(
            f"device is {str(device)!r}, but there are several processes; cuda gives each a GPU of its own."
        )
    try:
        from accelerate import Accelerator
        from accelerate.utils import InitProcessGroupKwargs
    except ImportError as error:
        raise UnsupportedError(
            f"Several processes need accelerate, which cannot be imported ({error}). "
            'Install it with `pip install "dflash-core[train]"`.'
        ) from None
    found = Accelerator(
        cpu=device.type == "cpu",
        mixed_precision="no",  # the passes have a dtype of their own
        kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)],
    )
    kind = str(found.distributed_type.value)
    if kind not in ("MULTI_CPU", "MULTI_GPU"):
        raise UnsupportedError(
            f"accelerate was set up for {kind}; a draft is trained in processes that hold all of it: use "
            "`accelerate launch --multi_gpu`, or --cpu, without a plugin."
        )
    return found


@contextmanager
def _one_voice() -> Iterator[None]:
    """One process that fails brings down those that wait for it; only the first says what is wrong."""
    try:
        yield
    except BaseException:
        if _first():
            raise
        raise SystemExit(SILENT) from None


def _first() -> bool:
    """Whether no other process of this run has failed before; true where that cannot be found out."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=timedelta(seconds=10),
        )
        failed: int = store.add(f"dflash-core/failed/{attempt}", 1)
    except (KeyError, RuntimeError):
        return True
    return failed == 1


@contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise DFlashError(
            f"Another process of the run cannot be reached ({str(error).splitlines()[0]}). "
            "The same command goes on from the last save."
        ) from None
