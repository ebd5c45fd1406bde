"""Token trees keep the promises of their docstring, however they are made."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.tree import TokenTree, best_first, chain, from_parents


def assert_well_formed(tree: TokenTree):
    batch, width = tree.tokens.shape
    assert tree.width == width
    assert tree.visible.shape == (batch, width, width)
    ptr = tree.child_ptr()
    assert ptr.shape == (batch, width + 1)
    for row in range(batch):
        count = int(tree.num_nodes[row])
        assert 1 <= count <= width
        parents, depths = tree.parents[row].tolist(), tree.depths[row].tolist()
        assert (parents[0], depths[0]) == (-1, 0)
        for node in range(1, count):
            assert 0 <= parents[node] < node
            assert depths[node] == depths[parents[node]] + 1 <= tree.max_depth
        assert parents[1:count] == sorted(parents[1:count])  # siblings side by side, in breadth-first order
        assert depths[:count] == sorted(depths[:count])
        for node in range(width):
            seen = tree.visible[row, node].clone()
            assert bool(seen[node])
            seen[node] = False
            if 0 < node < count:
                assert torch.equal(seen, tree.visible[row, parents[node]])
            else:
                assert not bool(seen.any())
            begin, end = ptr[row, node : node + 2].tolist()
            assert all(parents[child] == node for child in range(begin, end))
            siblings = tree.tokens[row, begin:end].tolist()
            assert len(set(siblings)) == len(siblings)
        assert int(ptr[row, -1]) == count
        assert parents[count:] == [-1] * (width - count)
        assert depths[count:] == [0] * (width - count)
        assert tree.tokens[row, count:].tolist() == [0] * (width - count)
        if tree.is_chain:
            assert parents[:count] == list(range(-1, count - 1))


@settings(max_examples=30, deadline=None)
@given(batch=st.integers(1, 4), width=st.integers(1, 9), seed=st.integers(0, 999))
def test_chains(batch, width, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 50, (batch, width), generator=generator)
    num_nodes = torch.randint(1, width + 1, (batch,), generator=generator)
    tree = chain(tokens, num_nodes)
    assert_well_formed(tree)
    assert tree.is_chain
    for row in range(batch):
        count = int(num_nodes[row])
        assert torch.equal(tree.tokens[row, :count], tokens[row, :count])


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 4),
    depth=st.integers(1, 6),
    ranks=st.integers(1, 6),
    max_budget=st.integers(0, 25),
    coarse=st.booleans(),
    seed=st.integers(0, 999),
)
def test_best_first_trees(batch, depth, ranks, max_budget, coarse, seed):
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(batch, depth, ranks, generator=generator).log_softmax(-1)
    if coarse:
        log_probs = log_probs.round()
    log_probs = log_probs.sort(-1, descending=True).values
    ids = torch.rand(batch, depth, 40, generator=generator).argsort(-1)[..., :ranks] + 1
    budgets = torch.randint(0, max_budget + 1, (batch,), generator=generator)
    anchors = torch.randint(1, 40, (batch,), generator=generator)
    tree, node_log_probs = best_first(anchors, log_probs, ids, budgets, max_budget)
    assert_well_formed(tree)
    assert tree.width == max_budget + 1
    possible = sum(ranks**level for level in range(1, depth + 1))
    assert tree.num_nodes.tolist() == [1 + min(possible, int(budget)) for budget in budgets]
    assert torch.equal(tree.tokens[:, 0], anchors)
    # No path that was left out is better than one that was taken.
    path = (tree.visible * node_log_probs[:, None, :]).sum(-1)
    for row in range(batch):
        taken = path[row, 1 : int(tree.num_nodes[row])]
        everything = torch.zeros(1)
        levels = []
        for level in range(depth):
            everything = (everything[:, None] + log_probs[row, level]).flatten()
            levels.append(everything)
        best = torch.cat(levels).sort(descending=True).values[: len(taken)]
        torch.testing.assert_close(taken.sort(descending=True).values, best)


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 3),
    depth=st.integers(1, 5),
    candidates=st.integers(1, 5),
    max_budget=st.integers(0, 25),
    seed=st.integers(0, 999),
)
def test_trees_whose_tokens_depend_on_the_one_before(batch, depth, candidates, max_budget, seed):
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(batch, depth, candidates, candidates, generator=generator).log_softmax(-1)
    log_probs, choice = log_probs.sort(-1, descending=True)
    ids = torch.rand(batch, depth, 40, generator=generator).argsort(-1)[..., :candidates] + 1
    budgets = torch.randint(0, max_budget + 1, (batch,), generator=generator)
    tree, _ = best_first(torch.full((batch,), 99), log_probs, ids, budgets, max_budget, choice)
    assert_well_formed(tree)
    possible = sum(candidates**level for level in range(1, depth + 1))
    assert tree.num_nodes.tolist() == [1 + min(possible, int(budget)) for budget in budgets]


@pytest.mark.parametrize("smaller", [1, 2, 5, 9])
def test_nodes_up_to_a_rank_are_the_tree_of_that_budget(smaller):
    """What a schedule learns from one budget about all smaller ones rests on this."""
    generator = torch.Generator().manual_seed(3)
    log_probs = torch.randn(3, 4, 6, generator=generator).log_softmax(-1).sort(-1, descending=True).values
    ids = torch.rand(3, 4, 40, generator=generator).argsort(-1)[..., :6] + 1
    anchors = torch.tensor([97, 98, 99])
    whole, _ = best_first(anchors, log_probs, ids, torch.tensor([12, 12, 3]), 12)
    part, _ = best_first(anchors, log_probs, ids, torch.tensor([smaller, smaller, min(smaller, 3)]), smaller)
    for row in range(3):
        ranks = whole.ranks[row, : int(whole.num_nodes[row])]
        assert ranks.sort().values.tolist() == list(range(len(ranks)))
        kept = (ranks <= smaller).nonzero()[:, 0]
        paths = {tuple(whole.tokens[row][whole.visible[row, node]].tolist()) for node in kept}
        nodes = range(int(part.num_nodes[row]))
        assert paths == {tuple(part.tokens[row][part.visible[row, node]].tolist()) for node in nodes}


def test_a_bigger_budget_only_adds_nodes():
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(1, 5, 8, generator=generator).log_softmax(-1).sort(-1, descending=True).values
    ids = torch.arange(40).view(1, 5, 8)
    paths = []
    for budget in (1, 4, 16, 64):
        tree, _ = best_first(torch.tensor([99]), log_probs, ids, torch.tensor([budget]), budget)
        nodes = tree.visible[0, : int(tree.num_nodes[0])]
        paths.append({tuple(tree.tokens[0][seen].tolist()) for seen in nodes})
    assert all(small < large for small, large in pairwise(paths))


def test_a_single_candidate_a_slot_makes_a_chain():
    log_probs = torch.full((2, 4, 1), -0.5)
    ids = torch.arange(8).view(2, 4, 1)
    tree, _ = best_first(torch.tensor([7, 8]), log_probs, ids, torch.tensor([4, 2]), 6)
    assert tree.is_chain
    assert_well_formed(tree)
    wanted = chain(torch.tensor([[7, 0, 1, 2, 3, 0, 0], [8, 4, 5, 6, 7, 0, 0]]), torch.tensor([5, 3]))
    assert torch.equal(tree.tokens, wanted.tokens)
    assert torch.equal(tree.visible, wanted.visible)


def test_closed_depths_shorten_one_request_alone():
    log_probs = torch.full((2, 3, 2), -0.7)
    log_probs[1, 1:] = float("-inf")
    ids = torch.arange(12).view(2, 3, 2)
    tree, _ = best_first(torch.tensor([0, 0]), log_probs, ids, torch.tensor([10, 10]), 10)
    assert int(tree.depths[0].max()) == 3
    assert int(tree.depths[1].max()) == 1
    assert tree.num_nodes.tolist() == [11, 3]


@pytest.mark.parametrize("count", [1, 3, 6])
def test_from_parents_ignores_what_stands_behind_the_tree(count):
    tokens = torch.tensor([[9, 1, 2, 3, 4, 5]])
    parents = torch.tensor([[-1, 0, 0, 1, 2, 2]])
    tree = from_parents(tokens, parents, torch.tensor([count]), max_depth=2)
    assert_well_formed(tree)
    assert not tree.is_chain
    assert tree.depths[0, :count].tolist() == [0, 1, 1, 2, 2, 2][:count]
