"""Rollback of chains on KV caches: the rejected slots are simply not part of the sequence any more."""

from collections.abc import Sequence
from typing import Literal

from dflash_core.errors import UnsupportedError
from dflash_core.rollback.base import RollbackPlan
from dflash_core.tree import TokenTree
from dflash_core.verdict import Verdict


class CropRollback:
    """Keeps the first slots of the block; nothing is copied."""

    name = "crop"
    recording: Literal["none"] = "none"

    def plan(self, tree: TokenTree, verdict: Verdict, keep: Sequence[int]) -> RollbackPlan:
        """See `RollbackPolicy.plan`.

        Raises:
            UnsupportedError: the proposal is a tree, whose accepted nodes need not stand side by side.
        """
        if not tree.is_chain:
            raise UnsupportedError(
                'The rollback "crop" keeps the first slots of a block, but the accepted nodes of a tree are '
                'scattered over it; use "gather".'
            )
        return RollbackPlan(keep=keep)
