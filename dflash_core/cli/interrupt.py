"""A first Ctrl-C that is a request to finish cleanly; a second one is not."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dflash_core.cli import output


class Interrupt:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked


@contextmanager
def graceful(saying: str) -> Iterator[Interrupt]:
    """Within it the first Ctrl-C (or SIGTERM) only sets the flag and says so; the next one interrupts.

    Args:
        saying: nothing is said when it is empty.
    """
    interrupt = Interrupt()

    def asked(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True
        if saying:
            output.note(saying)

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
