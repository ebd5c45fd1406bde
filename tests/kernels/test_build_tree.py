"""The vectorised best-first tree is the tree that DDTree's heap pops."""

import heapq

import numpy as np
import pytest
import torch

from dflash_kernels.build_tree import build_tree


def heap_tree(log_probs, ids, budget):
    """(token, parent, depth, log-probability) of each node besides the anchor, in breadth-first order."""
    depth, ranks = log_probs.shape
    if depth == 0 or ranks == 0:
        return []
    popped: list[tuple[int, ...]] = []
    heap = []

    def push(path, order):
        score = np.float32(0)
        for level, rank in enumerate(path):
            score = np.float32(score + log_probs[level, rank])
        if score > -np.inf:
            heapq.heappush(heap, (-score, len(path), *order, path))

    def order_of(path):
        """Ties within a depth: the parent that comes first in its level, then the smaller rank."""
        parent = level_order.get(path[:-1], 0)
        return (parent, path[-1])

    level_order: dict[tuple[int, ...], int] = {(): 0}
    level_count: dict[int, int] = {}
    push((0,), order_of((0,)))
    while heap and len(popped) < budget:
        path = heapq.heappop(heap)[-1]
        popped.append(path)
        level_order[path] = level_count.get(len(path), 0)
        level_count[len(path)] = level_order[path] + 1
        if path[-1] + 1 < ranks:
            sibling = (*path[:-1], path[-1] + 1)
            push(sibling, order_of(sibling))
        if len(path) < depth:
            push((*path, 0), order_of((*path, 0)))
    popped.sort(key=lambda path: (len(path), path))
    node = {path: number for number, path in enumerate(popped, start=1)}
    return [
        (
            int(ids[len(path) - 1, path[-1]]),
            node.get(path[:-1], 0),
            len(path),
            float(log_probs[len(path) - 1, path[-1]]),
        )
        for path in popped
    ]


def lattice(generator, batch, depth, ranks, kind):
    ids = torch.stack([torch.randperm(1000, generator=generator)[:ranks] for _ in range(batch * depth)]).view(
        batch, depth, ranks
    )
    if kind == "coarse":  # sums of few values: ties everywhere, also between a path and its parent
        log_probs = -torch.randint(0, 3, (batch, depth, ranks), generator=generator).float()
    elif kind == "flat":
        log_probs = torch.zeros(batch, depth, ranks)
    else:
        scale = 1.0 if kind == "smooth" else 12.0
        log_probs = (torch.randn(batch, depth, ranks, generator=generator) * scale).log_softmax(-1)
    log_probs = log_probs.sort(-1, descending=True).values
    if kind == "cut":  # some depths are closed to some requests
        for row in range(batch):
            log_probs[row, int(torch.randint(0, depth + 1, (1,), generator=generator)) :] = float("-inf")
    return log_probs, ids


@pytest.mark.parametrize("impl", ["reference", "host"])
@pytest.mark.parametrize("kind", ["smooth", "peaked", "coarse", "flat", "cut"])
@pytest.mark.parametrize(
    ("depth", "ranks", "max_budget"),
    [
        (1, 1, 1),
        (1, 8, 5),
        (3, 2, 20),
        (7, 7, 7),
        (15, 16, 16),
        (7, 64, 64),
        (4, 3, 1),
        (2, 2, 40),
        (15, 1, 9),
    ],
)
def test_the_tree_is_the_heaps_tree(kind, depth, ranks, max_budget, impl):
    generator = torch.Generator().manual_seed(hash((depth, ranks, max_budget)) % 2**31)
    batch = 6
    for _ in range(4):
        log_probs, ids = lattice(generator, batch, depth, ranks, kind)
        budgets = torch.randint(0, max_budget + 1, (batch,), generator=generator)
        budgets[0], budgets[1] = max_budget, 0
        anchors = torch.randint(0, 1000, (batch,), generator=generator)
        built = build_tree(anchors, log_probs, ids, budgets, max_budget, impl=impl)
        assert built.tokens.shape == (batch, max_budget + 1)
        assert built.visible.shape == (batch, max_budget + 1, max_budget + 1)
        for row in range(batch):
            expected = heap_tree(log_probs[row].numpy(), ids[row], int(budgets[row]))
            count = int(built.num_nodes[row])
            nodes = list(
                zip(
                    built.tokens[row, 1:count].tolist(),
                    built.parents[row, 1:count].tolist(),
                    built.depths[row, 1:count].tolist(),
                    built.log_probs[row, 1:count].tolist(),
                    strict=True,
                )
            )
            assert nodes == expected
            assert (built.tokens[row, 0], built.parents[row, 0], built.depths[row, 0]) == (
                anchors[row],
                -1,
                0,
            )
            for tensor, fill in (
                (built.tokens, 0),
                (built.parents, -1),
                (built.depths, 0),
                (built.log_probs, 0),
            ):
                assert (tensor[row, count:] == fill).all()


def test_no_candidates_or_no_budget_leave_the_anchor_alone():
    anchors = torch.tensor([5, 6])
    for depth, ranks, max_budget in [(3, 4, 0), (0, 4, 2), (3, 0, 2)]:
        built = build_tree(
            anchors,
            torch.zeros(2, depth, ranks),
            torch.zeros(2, depth, ranks, dtype=torch.int64),
            torch.full((2,), max_budget),
            max_budget,
        )
        assert built.num_nodes.tolist() == [1, 1]
        assert built.tokens[:, 0].tolist() == [5, 6]
        assert torch.equal(built.visible, torch.eye(max_budget + 1, dtype=torch.bool).expand(2, -1, -1))


def test_half_precision_marginals_are_summed_in_float32():
    log_probs = torch.tensor([[[-0.5, -1.0]], [[-0.25, -3.0]]]).transpose(0, 1).bfloat16()
    ids = torch.arange(4).view(1, 2, 2)
    built = build_tree(torch.tensor([9]), log_probs, ids, torch.tensor([3]), 3)
    assert built.log_probs.dtype == torch.float32
    assert built.tokens[0].tolist() == [9, 0, 1, 2]


@pytest.mark.parametrize("kind", ["smooth", "coarse", "flat", "cut"])
@pytest.mark.parametrize(("depth", "ranks", "max_budget"), [(3, 4, 6), (0, 3, 4), (7, 0, 3), (2, 5, 0)])
def test_both_ways_answer_the_same(kind, depth, ranks, max_budget):
    generator = torch.Generator().manual_seed(1)
    if depth and ranks:
        log_probs, ids = lattice(generator, 5, depth, ranks, kind)
    else:
        log_probs, ids = torch.zeros(5, depth, ranks), torch.zeros(5, depth, ranks, dtype=torch.int64)
    budgets = torch.randint(0, max_budget + 1, (5,), generator=generator)
    ways = [
        build_tree(torch.arange(5), log_probs, ids, budgets, max_budget, impl=impl)
        for impl in ("reference", "host")
    ]
    for one, other in zip(*ways, strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype
