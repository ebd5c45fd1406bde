"""What the cycle needs from anything that guesses tokens."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from dflash_core.proposal import Proposal
from dflash_core.sampling import SamplingBatch
from dflash_core.schedule.base import CyclePlan


class DraftContext(Protocol):
    """What a drafter remembers of the requests that are decoded together; row b is request b."""

    @property
    def lengths(self) -> Sequence[int]:
        """Committed positions a row, the anchor not among them: the same as the target state's."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order: new row i is old row `rows[i]`. The others are released."""
        ...


class Drafter(Protocol):
    """Proposes blocks.

    It may have `branches(sampling: SamplingParams) -> bool`: whether a schedule may choose a tree for such a
    request. Without it a tree is proposed to requests that ask for one only.
    """

    name: str
    block_size: int
    """Slots of a block, anchor included."""
    taps: tuple[int, ...]
    """Target blocks whose outputs it reads; empty for a drafter that needs none."""

    def start(self) -> DraftContext:
        """An empty context."""
        ...

    def join(self, context: DraftContext, tokens: Sequence[int], taps: Tensor | None) -> None:
        """Append a row for a request whose prompt has just been run.

        Args:
            tokens: the T prompt tokens.
            taps: [T, P * D] of the prompt.
        """
        ...

    def propose(
        self, anchors: Tensor, context: DraftContext, plan: CyclePlan, sampling: SamplingBatch
    ) -> Proposal:
        """Draft for all rows; rows whose planned block size is 1 get their anchor alone.

        Args:
            anchors: [B] int64.
        """
        ...

    def commit(
        self,
        context: DraftContext,
        tokens: Sequence[Sequence[int]],
        taps: Tensor | None,
        nodes: Sequence[Sequence[int]],
    ) -> None:
        """Append what was committed: row b's context grows by `len(nodes[b])` positions.

        Args:
            tokens: per row the anchor and the accepted drafts (not the bonus, which is the next anchor).
            taps: [B, N, P * D], of the verify forward.
            nodes: per row the accepted nodes, the root first; `taps[b, nodes[b]]` are the new rows.
        """
        ...
