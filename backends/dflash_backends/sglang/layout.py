"""From the core's trees to what SGLang verifies, and from verdicts to what it commits."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from dflash_core.tree import TokenTree
from dflash_core.verdict import Verdict


@dataclass(frozen=True)
class Nodes:
    """The nodes of B requests as SGLang verifies them: N each.

    Attributes:
        tokens, positions: [B * N] int64.
        mask: [sum of N * (length + N)] bool, each request's rows over its committed positions and then its
            nodes; `None` for chains, which need none.
        reserved: [B, N] int64, the positions whose slots they are written to.
    """

    tokens: Tensor
    positions: Tensor
    mask: Tensor | None
    reserved: Tensor

    @property
    def width(self) -> int:
        """N."""
        return self.reserved.shape[1]


@dataclass(frozen=True)
class Kept:
    """What one verdict does to the slots of the B windows of N slots each; A = the longest path.

    Attributes:
        target: [B * A] int64, the slots that the accepted nodes belong in; past a request's end 0, the slot
            of nobody, so that whatever is written there does no harm.
        rows: [B * A] int64, the accepted nodes among the B * N rows of a verify forward, which wrote the
            slots of the windows; past the end those of roots.
        positions: [B * A] int64.
    """

    target: Tensor
    rows: Tensor
    positions: Tensor


def nodes_of(tree: TokenTree, lengths: Tensor, lengths_host: list[int], width: int) -> Nodes:
    """The tree's nodes, padded to `width` a request.

    Args:
        lengths: [B] int64, committed positions; `lengths_host` are the same.
        width: at least the tree's own. Padding nodes stand behind all others and nobody sees them.
    """
    extra = width - tree.width
    tokens = pad(tree.tokens, (0, extra)) if extra else tree.tokens
    reserved = lengths[:, None] + torch.arange(width, device=lengths.device)
    if tree.is_chain:
        # as in any chain, a padding slot comes after what it pads
        return Nodes(tokens.flatten(), reserved.flatten(), None, reserved)
    positions = lengths[:, None] + pad(tree.depths, (0, extra))
    visible = pad(tree.visible, (0, extra, 0, extra))
    if extra:
        new = torch.arange(tree.width, width, device=lengths.device)
        visible[:, new, new] = True
    mask = full_mask(visible, lengths, lengths_host)
    return Nodes(tokens.flatten(), positions.flatten(), mask, reserved)


def full_mask(visible: Tensor, lengths: Tensor, lengths_host: list[int]) -> Tensor:
    """SGLang's flat tree mask: for each request N rows of `length + N` columns.

    Args:
        visible: [B, N, N] bool, which node sees which. All see every committed position.
    """
    width = visible.shape[1]
    device = visible.device
    total = sum(width * (length + width) for length in lengths_host)
    columns = (lengths + width).repeat_interleave(width)  # [B * N]
    row = torch.repeat_interleave(columns, output_size=total)
    column = torch.arange(total, device=device) - (columns.cumsum(0) - columns)[row]
    node = column - lengths.repeat_interleave(width)[row]
    inside = visible.reshape(-1, width)[row, node.clamp(min=0)]
    return inside | (node < 0)


def kept_by(verdict: Verdict, window: Tensor, reserved: Tensor) -> Kept:
    """Where the accepted nodes lie, and where they belong.

    Args:
        window: [B, N] int64, the slots that the verify forward wrote.
        reserved: [B, N] int64, their positions.
    """
    batch, width = window.shape
    nodes = verdict.nodes
    first = torch.arange(0, batch * width, width, device=nodes.device)
    longest = nodes.shape[1]
    return Kept(
        target=window[:, :longest].where(nodes >= 0, 0).flatten(),
        rows=(first[:, None] + nodes.clamp(min=0)).flatten(),
        positions=reserved[:, :longest].flatten(),
    )


def links(parents: Tensor, num_nodes: Tensor) -> tuple[Tensor, Tensor]:
    """First child and next sibling of every node, -1 where there is none: how SGLang walks a tree.

    Args:
        parents: [B, N] int64, breadth first, on the host. num_nodes: [B] int64.

    Returns:
        Two [B, N] int64 tensors.
    """
    child, sibling = torch.full_like(parents, -1), torch.full_like(parents, -1)
    for row, count in enumerate(num_nodes.tolist()):
        for node in range(count - 1, 0, -1):
            parent = int(parents[row, node])
            sibling[row, node] = child[row, parent]
            child[row, parent] = node
    return child, sibling
