"""Trees of tokens whose probability depends on the candidate before: the most probable paths, no others."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_kernels.build_tree import build_tree

IMPLS = ("reference", "host")
KINDS = ("smooth", "peaked", "uneven", "coarse", "flat", "cut")


def lattice(seed, batch, depth, candidates, ranks, kind):
    """log_probs and choice [B, D, C, K], ids [B, D, C]."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, depth, candidates, candidates)
    if kind == "coarse":  # sums of few values: ties everywhere, also between a path and its parent
        log_probs = -torch.randint(0, 3, shape, generator=generator).float()
    elif kind == "flat":
        log_probs = torch.zeros(shape)
    else:
        scale = 12.0 if kind == "peaked" else 1.0
        log_probs = (torch.randn(shape, generator=generator) * scale).log_softmax(-1)
    if kind == "uneven":  # much may follow one candidate, and nothing another
        log_probs -= 6.0 * torch.rand(shape[:-1], generator=generator)[..., None].round()
    if kind == "cut":  # some depths are closed to some requests, some candidates in some places
        log_probs[torch.rand(shape, generator=generator) < 0.2] = float("-inf")
        for row in range(batch):
            log_probs[row, int(torch.randint(0, depth + 1, (1,), generator=generator)) :] = float("-inf")
    shuffled = torch.rand(shape, generator=generator).argsort(-1)  # equals stand in any order
    log_probs, order = log_probs.gather(-1, shuffled).sort(dim=-1, descending=True, stable=True)
    ids = torch.rand(batch, depth, 50, generator=generator).argsort(-1)[..., :candidates] + 1
    return log_probs[..., :ranks], shuffled.gather(-1, order)[..., :ranks], ids


def every_path(log_probs, choice, ids):
    """All paths of one request, best first: (ranks, tokens, own log-probability, score).

    Of equals the shorter comes first, then the one whose parent does, then the one of the smaller rank.
    """
    level, everything = [((), (), 0, np.float32(0))], []
    for depth in range(len(log_probs)):
        below = []
        for ranks, tokens, row, score in level:
            for rank, own in enumerate(log_probs[depth, row]):
                token = int(ids[depth, choice[depth, row, rank]])
                total = np.float32(score + own)
                if total > -np.inf:
                    below.append(
                        ((*ranks, rank), (*tokens, token), choice[depth, row, rank], total, float(own))
                    )
        below.sort(key=lambda path: -path[3])  # keeps the order of the parents, and of siblings, among equals
        everything += [(ranks, tokens, own, score) for ranks, tokens, _, score, own in below]
        level = [path[:4] for path in below]
    return sorted(everything, key=lambda path: (-path[3], len(path[0])))


def nodes(built, row):
    """{tokens from the anchor's child on: (own log-probability, rank)} of one request's tree."""
    found = {}
    for node in range(1, int(built.num_nodes[row])):
        path = built.tokens[row][built.visible[row, node]].tolist()[1:]
        found[tuple(path)] = (float(built.log_probs[row, node]), int(built.ranks[row, node]))
    return found


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("depth", "candidates", "ranks", "max_budget"),
    [(1, 1, 1, 1), (1, 4, 4, 3), (4, 3, 3, 12), (4, 3, 3, 130), (3, 5, 2, 9), (6, 2, 2, 20), (5, 3, 1, 4)],
)
def test_the_nodes_are_the_most_probable_of_all_paths(depth, candidates, ranks, max_budget, kind, impl):
    batch = 4
    for seed in range(3):
        log_probs, choice, ids = lattice(seed, batch, depth, candidates, ranks, kind)
        budgets = torch.tensor([max_budget, max_budget // 2, 0, max_budget])
        anchors = torch.tensor([97, 98, 99, 96])
        built = build_tree(anchors, log_probs, ids, budgets, max_budget, choice, impl=impl)
        for row in range(batch):
            paths = every_path(log_probs[row].numpy(), choice[row].numpy(), ids[row])
            best = paths[: int(budgets[row])]
            expected = {tokens: (own, rank) for rank, (_, tokens, own, _) in enumerate(best, 1)}
            assert nodes(built, row) == expected
            # In breadth-first order, better siblings first.
            in_order = sorted(best, key=lambda path: (len(path[0]), path[0]))
            count = int(built.num_nodes[row])
            assert built.tokens[row, 1:count].tolist() == [tokens[-1] for _, tokens, *_ in in_order]
            assert built.tokens[row, 0] == anchors[row]


@settings(max_examples=150, deadline=None)
@given(
    batch=st.integers(1, 5),
    depth=st.integers(0, 8),
    candidates=st.integers(1, 9),
    ranks=st.integers(0, 9),
    max_budget=st.integers(0, 40),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 999),
)
def test_both_ways_answer_the_same_to_the_last_bit(batch, depth, candidates, ranks, max_budget, kind, seed):
    log_probs, choice, ids = lattice(seed, batch, depth, candidates, min(ranks, candidates), kind)
    budgets = torch.randint(0, max_budget + 1, (batch,), generator=torch.Generator().manual_seed(seed))
    ways = [
        build_tree(torch.arange(batch), log_probs, ids, budgets, max_budget, choice, impl=impl)
        for impl in IMPLS
    ]
    for one, other in zip(*ways, strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("kind", KINDS)
def test_where_the_candidate_before_does_not_matter_the_tree_is_that_of_independent_depths(kind, impl):
    log_probs, choice, ids = lattice(5, 3, 5, 6, 6, kind)
    alike, same = log_probs[:, :, :1], choice[:, :, :1]
    alone = build_tree(
        torch.arange(3), alike[:, :, 0], ids.gather(2, same[:, :, 0]), torch.tensor([30, 7, 1]), 30, impl=impl
    )
    rows = (-1, -1, 6, -1)
    told = build_tree(
        torch.arange(3), alike.expand(rows), ids, torch.tensor([30, 7, 1]), 30, same.expand(rows), impl=impl
    )
    for one, other in zip(alone, told, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("better", [1, 2, 5])
@pytest.mark.parametrize("children", [1, 3, 8])
def test_all_children_of_a_path_whose_better_ones_have_none(children, better, impl):
    """The best first tokens are followed by nothing likely; only what depends on the path can know that."""
    count = max(children, better + 1)
    log_probs = torch.full((1, 2, count, count), -50.0)
    log_probs[0, 0, 0, : better + 1] = -torch.arange(1.0, better + 2) / 10
    log_probs[0, 1, better, :children] = -5.0
    choice = torch.arange(count - 1, -1, -1).expand(1, 2, count, count).contiguous()
    choice[:, 0] = torch.arange(count)
    ids = torch.arange(2 * count).view(1, 2, count)
    budget = better + 1 + children
    built = build_tree(torch.tensor([99]), log_probs, ids, torch.tensor([budget]), budget, choice, impl=impl)
    below = [2 * count - 1 - rank for rank in range(children)]
    assert built.tokens.tolist() == [[99, *range(better + 1), *below]]
    assert built.parents.tolist() == [[-1, *[0] * (better + 1), *[better + 1] * children]]
    assert built.ranks.tolist() == [[*range(budget + 1)]]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("smaller", [1, 4, 11])
def test_nodes_up_to_a_rank_are_the_tree_of_that_budget(smaller, impl):
    log_probs, choice, ids = lattice(2, 2, 5, 6, 6, "smooth")
    both = [
        build_tree(torch.tensor([97, 98]), log_probs, ids, torch.tensor([n, n]), n, choice, impl=impl)
        for n in (smaller, 20)
    ]
    for row in range(2):
        part, whole = (nodes(built, row) for built in both)
        assert part == {path: node for path, node in whole.items() if node[1] <= smaller}


@pytest.mark.parametrize(("shape", "chosen"), [((1, 2, 3), True), ((1, 2, 3, 3), False)])
def test_log_probs_that_do_not_go_with_the_choice_are_refused(shape, chosen):
    choice = torch.zeros(1, 2, 3, 3, dtype=torch.int64) if chosen else None
    ids = torch.zeros(1, 2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="dimensions"):
        build_tree(torch.tensor([1]), torch.zeros(shape), ids, torch.tensor([1]), 1, choice)
