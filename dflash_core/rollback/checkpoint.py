"""Rollback of recurrent layers to a state recorded during the verify forward."""

from collections.abc import Sequence
from typing import Literal

from dflash_core.rollback.base import RollbackPlan
from dflash_core.rollback.recurrent import require_chain
from dflash_core.tree import TokenTree
from dflash_core.verdict import Verdict


class CheckpointRollback:
    """Takes the state recorded after the last kept token; KV layers are cropped.

    Costs the memory of one state a slot, where `ReplayRollback` costs time.
    """

    name = "checkpoint"
    recording: Literal["checkpoint"] = "checkpoint"

    def plan(self, tree: TokenTree, verdict: Verdict, keep: Sequence[int]) -> RollbackPlan:
        """See `RollbackPolicy.plan`.

        Raises:
            UnsupportedError: the proposal is a tree.
        """
        require_chain(self.name, tree)
        return RollbackPlan(keep=keep, recurrent="checkpoint")
