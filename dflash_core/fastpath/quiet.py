"""Tells whether something else wanted the processor while we measured."""

import resource
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

import torch

SWITCHES = 120.0
"""Involuntary context switches a second. With two threads an idle machine showed about 50, one with a single
busy process 170, with two 250."""

GLANCE = 0.3
"""Seconds of work that tell whether it is worth measuring now."""

T = TypeVar("T")


def undisturbed(measure: Callable[[], T]) -> T | None:
    """What `measure` returns, or `None` where the machine is too busy to measure anything.

    Threads that work in lockstep wait for the slowest, so on a busy machine a forward takes ten times as long
    and its parts no longer compare.
    """
    _work()  # the first moments of a process are restless
    if _unless_disturbed(_work) is None:
        return None
    return _unless_disturbed(measure)


def _unless_disturbed(run: Callable[[], T]) -> T | None:
    begin, switches = perf_counter(), _switches()
    result = run()
    seconds = max(perf_counter() - begin, GLANCE)
    return result if (_switches() - switches) / seconds <= SWITCHES else None


def _work() -> bool:
    """Keep all threads busy for a moment."""
    weight, x = torch.ones(512, 512), torch.ones(16, 512)
    until = perf_counter() + GLANCE
    with torch.inference_mode():
        while perf_counter() < until:
            x @ weight
    return True


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
