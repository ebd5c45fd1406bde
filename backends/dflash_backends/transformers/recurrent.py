"""Recurrent states of one linear-attention layer for many rows."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_backends.transformers.span import Span

State = tuple[Tensor, Tensor]
"""Convolution inputs [B, C, K] and recurrent state [B, H, dk, dv]."""


class RecurrentRows:
    """Committed states of all rows, and the working states of the forward in progress.

    Padding behind a row's last node is harmless while a forward runs, since a recurrence looks back only;
    it ends up in the working state, which is why that is committed only where every node was accepted.

    Attributes:
        conv, state: the working states; `None` before a row's first token.
        inputs: what a recording forward fed the layer, [B, N, D].
        steps: the working states after each node of a recording forward.
    """

    def __init__(self) -> None:
        self._committed: State | None = None
        self.conv: Tensor | None = None
        self.state: Tensor | None = None
        self.inputs: Tensor | None = None
        self.steps: list[State] = []

    @property
    def working(self) -> State:
        """What the forward left behind."""
        if self.conv is None or self.state is None:
            raise RuntimeError("No forward has run through this recurrent layer.")
        return self.conv, self.state

    def open(self, span: Span) -> None:
        """Begin a forward from the committed state of these rows; a new row begins from nothing."""
        self.inputs, self.steps = None, []
        if span.starts == (0,):
            self.conv = self.state = None
        elif self._committed is not None and span.first < len(self._committed[0]):
            self.load(self._committed, span.rows)

    def load(self, states: State, rows: slice | Tensor) -> None:
        """Work on from these rows of `states`, which stay as they are."""
        conv, state = states
        self.conv, self.state = conv[rows].clone(), state[rows]  # models write into the former in place

    def push_conv(self, new: Tensor, kernel: int | None) -> Tensor:
        """Append inputs [B, C, N] of the convolution.

        Returns:
            [B, C, K + N], or [B, C, max(K, N)] for a row's first tokens: the inputs with what came before.
        """
        if self.conv is None:
            kernel = kernel or new.shape[-1]
            joined = F.pad(new, (max(0, kernel - new.shape[-1]), 0))
        else:
            kernel = self.conv.shape[-1]
            joined = torch.cat([self.conv, new], -1)
        self.conv = joined[..., -kernel:].clone()
        return joined

    def append(self) -> None:
        """Commit the working state as a new last row."""
        if self._committed is None:
            self._committed = self.working
        else:
            (conv, state), (new_conv, new_state) = self._committed, self.working
            self._committed = torch.cat([conv, new_conv]), torch.cat([state, new_state])

    def commit(self, states: State) -> None:
        """These are the committed states of all rows from now on."""
        self._committed = states

    @property
    def committed(self) -> State:
        """The states before the forward in progress."""
        if self._committed is None:
            raise RuntimeError("No row has been committed to this recurrent layer.")
        return self._committed

    def keep(self, rows: Sequence[int], moved: Sequence[tuple[int, int]], longest: int) -> None:
        """New row i is old row `rows[i]`."""
        if self._committed is not None:
            index = torch.tensor(rows, dtype=torch.int64, device=self._committed[0].device)
            conv, state = self._committed
            self._committed = conv[index], state[index]
