"""`argmax` on a GPU, where torch's own is one kernel."""

from torch import Tensor


def argmax(x: Tensor) -> Tensor:
    """See `reference.argmax`."""
    return x.argmax(-1)
