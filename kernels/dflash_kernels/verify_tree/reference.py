"""Reference of `verify_tree`."""

from torch import Tensor

from dflash_kernels.trees import accepted_path


def verify_tree(
    tokens: Tensor,
    parents: Tensor,
    depths: Tensor,
    visible: Tensor,
    num_nodes: Tensor,
    choice: Tensor,
    max_depth: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """An edge holds when the target chose the child's token at the parent."""
    edges = tokens == choice.gather(1, parents.clamp(min=0))  # [B, N]
    accepted, nodes = accepted_path(edges, depths, visible, num_nodes, max_depth)
    return accepted, nodes, choice.gather(1, nodes.clamp(min=0)).masked_fill(nodes < 0, -1)
