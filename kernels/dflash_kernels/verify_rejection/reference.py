"""Reference of `verify_rejection`."""

import torch
from torch import Tensor

from dflash_kernels.draw.reference import draw
from dflash_kernels.trees import accepted_path, child_ptr
from dflash_kernels.uniform import ACCEPT, RESIDUAL, STREAMS, TARGET
from dflash_kernels.uniform.reference import uniform


def verify_rejection(
    tokens: Tensor,
    parents: Tensor,
    depths: Tensor,
    visible: Tensor,
    num_nodes: Tensor,
    probs: Tensor,
    draft_ids: Tensor,
    draft_probs: Tensor,
    seeds: Tensor,
    positions: Tensor,
    max_depth: int,
    max_children: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Decide all edges, follow those that hold, and draw once more where the path ends."""
    target = probs.gather(-1, draft_ids).double()  # [B, N, K]
    decided = positions[:, None] + depths + 1
    ptr = child_ptr(parents, num_nodes)
    edges, left = _edges(tokens, ptr, target, draft_ids, draft_probs, seeds, decided, max_children)
    accepted, nodes = accepted_path(edges, depths, visible, num_nodes, max_depth)
    stop = nodes.gather(1, accepted[:, None])
    refused = ptr.diff(dim=1).gather(1, stop)[:, 0] > 0
    # Where nothing was refused the draw is that of plain sampling, with its noise: a request that happens to
    # have no draft in this cycle gets the same token whether or not others in the batch have one.
    end = positions + accepted + 1
    noise = torch.where(refused, uniform(seeds, end, RESIDUAL), uniform(seeds, end, TARGET))
    final = _final(probs, draft_ids, left, stop, noise)
    following = torch.cat([nodes[:, 1:], torch.full_like(stop, -1)], 1)
    path = tokens.gather(1, following.clamp(min=0)).masked_fill(following < 0, -1)
    return accepted, nodes, path.scatter(1, accepted[:, None], final[:, None])


def _edges(
    tokens: Tensor,
    ptr: Tensor,
    target: Tensor,
    ids: Tensor,
    draft: Tensor,
    seeds: Tensor,
    decided: Tensor,
    max_children: int,
) -> tuple[Tensor, Tensor]:
    """Try the children of all nodes, one rank after the other.

    p is kept on the candidates only and is not normalised: elsewhere it never changes, and its mass is known.

    Args:
        target: [B, N, K] float64, p on the candidates.
        decided: [B, N] int64, the position that the children of each node are proposed for.

    Returns:
        edges: [B, N] bool, whether the edge to each node holds.
        left: [B, N, K] float64, what remains of p on the candidates.
    """
    first, count = ptr[:, :-1], ptr.diff(dim=1)
    draft = draft.double()
    draft = draft / draft.sum(-1, keepdim=True)
    outside = (1 - target.sum(-1)).clamp(min=0)  # [B, N]
    edges = torch.zeros_like(tokens)
    undecided = torch.ones_like(edges, dtype=torch.bool)
    for rank in range(max_children):
        child = (first + rank).clamp(max=tokens.shape[1] - 1)
        tried = undecided & (rank < count)
        it = ids == tokens.gather(1, child)[..., None]  # [B, N, K]
        mass = target.sum(-1) + outside
        noise = uniform(seeds, decided, ACCEPT + STREAMS * rank)
        taken = tried & (noise * mass * (draft * it).sum(-1) < (target * it).sum(-1))
        edges = edges.scatter_add(1, child, taken.long())
        undecided = undecided & ~taken
        refused = (tried & ~taken)[..., None]
        target = torch.where(refused, (target - mass[..., None] * draft).clamp(min=0), target)
        others = draft.masked_fill(it, 0)
        draft = torch.where(refused, others / others.sum(-1, keepdim=True), draft)
    return edges > 0, target


def _final(probs: Tensor, ids: Tensor, left: Tensor, stop: Tensor, noise: Tensor) -> Tensor:
    """Draw from what remains of p at one node a request.

    Nothing remains only where rounding refused a draft although p and q are equal; then p itself serves.

    Args:
        stop: [B, 1] int64.
        noise: [B] float64.

    Returns:
        [B] int64.
    """
    here = stop[..., None]
    whole = probs.gather(1, here.expand(-1, -1, probs.shape[-1]))[:, 0]  # [B, V]
    ids = ids.gather(1, here.expand(-1, -1, ids.shape[-1]))[:, 0]
    left = left.gather(1, here.expand(-1, -1, left.shape[-1]))[:, 0]
    rest = whole.scatter(-1, ids, left.to(whole.dtype))
    return draw(torch.where(rest.sum(-1, keepdim=True) > 0, rest, whole), noise)
