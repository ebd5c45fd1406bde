"""Rollback policies answer with a plan; the owner of each cache carries it out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from dflash_core.tree import TokenTree
from dflash_core.verdict import Verdict


@dataclass(frozen=True)
class RollbackPlan:
    """What stays of the N slots that the last verify wrote, a request.

    Attributes:
        keep: how many positions become committed, a request (accepted drafts + the anchor); host integers,
            read once a cycle together with the tokens.
        gather: [B, A] int64 source slots within the block for positions 0 to keep - 1 (then -1), or `None`
            when they are already slots 0 to keep - 1, so that nothing moves.
        recurrent: how recurrent layers get to the state after `keep` tokens: "none" (there are none),
            "replay" (restore the state before the block, run the first `keep` tokens again) or
            "checkpoint" (take the state recorded after token `keep`).
    """

    keep: Sequence[int]
    gather: Tensor | None = None
    recurrent: Literal["none", "replay", "checkpoint"] = "none"


class RollbackPolicy(Protocol):
    """Decides what stays after a verdict."""

    name: str

    @property
    def recording(self) -> Literal["none", "replay", "checkpoint"]:
        """What the verify forward must record for this policy."""
        ...

    def plan(self, tree: TokenTree, verdict: Verdict, keep: Sequence[int]) -> RollbackPlan:
        """`keep` are the host's copies of `verdict.accepted + 1`."""
        ...
