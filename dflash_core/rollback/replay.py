"""Rollback of recurrent layers by running the accepted tokens again."""

from collections.abc import Sequence
from typing import Literal

from dflash_core.rollback.base import RollbackPlan
from dflash_core.rollback.recurrent import require_chain
from dflash_core.tree import TokenTree
from dflash_core.verdict import Verdict


class ReplayRollback:
    """Restores the state from before the block and runs the kept tokens; KV layers are cropped.

    Costs time, where `CheckpointRollback` costs memory.
    """

    name = "replay"
    recording: Literal["replay"] = "replay"

    def plan(self, tree: TokenTree, verdict: Verdict, keep: Sequence[int]) -> RollbackPlan:
        """See `RollbackPolicy.plan`.

        Raises:
            UnsupportedError: the proposal is a tree.
        """
        require_chain(self.name, tree)
        return RollbackPlan(keep=keep, recurrent="replay")
