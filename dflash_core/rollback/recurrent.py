"""What the rollbacks of recurrent layers have in common."""

from dflash_core.errors import UnsupportedError
from dflash_core.tree import TokenTree


def require_chain(policy: str, tree: TokenTree) -> None:
    """Recurrent layers run through the nodes of a block in order, so a block must be one branch.

    Raises:
        UnsupportedError: it is a tree.
    """
    if not tree.is_chain:
        raise UnsupportedError(
            f'The rollback "{policy}" is for targets with recurrent layers, whose state after a node would '
            "depend on nodes of other branches of a tree; draft chains (leave tree_budget out)."
        )
