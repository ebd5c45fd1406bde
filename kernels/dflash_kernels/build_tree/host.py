"""`build_tree` in plain Python, for few nodes in the host's memory, where tensor operations are slow."""

from heapq import heappop, heappush
from math import inf
from struct import Struct
from typing import NamedTuple

import torch
from torch import Tensor

FLOAT = Struct("f")

MOST = 256
"""Nodes of a batch up to which this is the faster way."""

Path = tuple[int, ...]
"""The ranks of a path's tokens, one a depth."""


class Node(NamedTuple):
    """A node besides the anchor."""

    path: Path
    token: int
    log_prob: float
    rank: int


def build_tree(
    anchors: Tensor,
    log_probs: Tensor,
    ids: Tensor,
    budgets: Tensor,
    max_budget: int,
    choice: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """DDTree's own algorithm: a heap of the paths that might come next, request by request."""
    width = max_budget + 1
    after = log_probs.float() if choice is not None else log_probs.float()[:, :, None]
    goes = [None] * len(anchors) if choice is None else choice.tolist()
    rows = [
        _row(anchor, sorted(_best(scores, to, tokens, budget), key=_breadth_first), width)
        for anchor, scores, to, tokens, budget in zip(
            anchors.tolist(), after.tolist(), goes, ids.tolist(), budgets.tolist(), strict=True
        )
    ]
    tokens, parents, depths, seen, counts, own, ranks = zip(*rows, strict=True)
    return (
        torch.tensor(tokens),
        torch.tensor(parents),
        torch.tensor(depths),
        torch.tensor(seen),
        torch.tensor(counts),
        torch.tensor(own, dtype=torch.float32),
        torch.tensor(ranks),
    )


def _best(
    log_probs: list[list[list[float]]],
    choice: list[list[list[int]]] | None,
    ids: list[list[int]],
    budget: int,
) -> list[Node]:
    """The best paths in order: a path's followers are its next sibling and its first child.

    Args:
        log_probs: [D, C, K]; C is 1 where the depths are independent.
        choice: [D, C, K]; `None` where the depths are independent.
        ids: [D, C], [D, K] where the depths are independent.
    """
    nodes: list[Node] = []
    heap: list[tuple[float, int, int, int, Path]] = []
    place: dict[Path, int] = {(): 0}  # within its depth, as the paths came
    placed = [1] + [0] * len(log_probs)
    score_of: dict[Path, float] = {(): 0.0}
    row_of: dict[Path, int] = {(): 0}  # of the log-probabilities that come after the path

    def offer(path: Path) -> None:
        depth, rank, parent = len(path), path[-1], path[:-1]
        if depth > len(log_probs):
            return
        scores = log_probs[depth - 1][row_of[parent]]
        if rank < len(scores):
            score = _rounded(score_of[parent] + scores[rank])
            if score > -inf:
                heappush(heap, (-score, depth, place[parent], rank, path))

    offer((0,))
    while heap and len(nodes) < budget:
        score, depth, _, rank, path = heappop(heap)
        row = row_of[path[:-1]]
        candidate = rank if choice is None else choice[depth - 1][row][rank]
        row_of[path] = 0 if choice is None else candidate
        score_of[path], place[path] = -score, placed[depth]
        placed[depth] += 1
        nodes.append(Node(path, ids[depth - 1][candidate], log_probs[depth - 1][row][rank], len(nodes) + 1))
        offer((*path[:-1], rank + 1))
        offer((*path, 0))
    return nodes


def _rounded(value: float) -> float:
    """To float32, in which the reference adds."""
    rounded: float = FLOAT.unpack(FLOAT.pack(value))[0]
    return rounded


def _breadth_first(node: Node) -> tuple[int, Path]:
    return len(node.path), node.path


def _row(
    anchor: int, nodes: list[Node], width: int
) -> tuple[list[int], list[int], list[int], list[list[bool]], int, list[float], list[int]]:
    """One request's row of everything in `BuiltTree`."""
    index = {node.path: number for number, node in enumerate(nodes, start=1)} | {(): 0}
    parents = [-1, *(index[node.path[:-1]] for node in nodes)]
    seen: list[list[bool]] = []
    for number in range(width):
        row = [False] * width
        row[number] = True
        if number < len(parents) and parents[number] >= 0:
            row = [here or above for here, above in zip(row, seen[parents[number]], strict=True)]
        seen.append(row)
    padding = width - 1 - len(nodes)
    return (
        [anchor, *(node.token for node in nodes), *[0] * padding],
        [*parents, *[-1] * padding],
        [0, *(len(node.path) for node in nodes), *[0] * padding],
        seen,
        1 + len(nodes),
        [0.0, *(node.log_prob for node in nodes), *[0.0] * padding],
        [0, *(node.rank for node in nodes), *[0] * padding],
    )
