"""Rollback of trees on KV caches: the accepted path is moved together."""

from collections.abc import Sequence
from typing import Literal

from dflash_core.rollback.base import RollbackPlan
from dflash_core.tree import TokenTree
from dflash_core.verdict import Verdict


class GatherRollback:
    """Moves the slots of the accepted nodes to the front of the block; for a chain they are there already."""

    name = "gather"
    recording: Literal["none"] = "none"

    def plan(self, tree: TokenTree, verdict: Verdict, keep: Sequence[int]) -> RollbackPlan:
        """See `RollbackPolicy.plan`."""
        return RollbackPlan(keep=keep, gather=None if tree.is_chain else verdict.nodes)
