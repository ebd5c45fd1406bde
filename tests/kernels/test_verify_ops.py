"""The vectorised verifications do what a walk from node to node does."""

import pytest
import torch

from dflash_kernels.trees import ancestors, child_ptr
from dflash_kernels.uniform import ACCEPT, RESIDUAL, STREAMS, TARGET, uniform
from dflash_kernels.verify_greedy import verify_greedy
from dflash_kernels.verify_rejection import verify_rejection
from dflash_kernels.verify_tree import verify_tree


def random_trees(batch, width, vocab, seed, widest=4):
    """Ragged trees in breadth-first order, siblings with different tokens; padding at the end."""
    generator = torch.Generator().manual_seed(seed)

    def pick(high):
        return int(torch.randint(0, high, (1,), generator=generator))

    tokens, parents = torch.zeros(2, batch, width, dtype=torch.int64)
    num_nodes = torch.zeros(batch, dtype=torch.int64)
    parents -= 1
    for row in range(batch):
        count = width if row == 0 else 1 + pick(width)
        num_nodes[row] = count
        tokens[row, 0] = pick(vocab)
        node, parent = 1, 0
        while node < count:
            children = min(pick(widest + 1), count - node)
            if children == 0 and parent == node - 1:
                children = 1
            tokens[row, node : node + children] = torch.randperm(vocab, generator=generator)[:children]
            parents[row, node : node + children] = parent
            node, parent = node + children, parent + 1
    visible = ancestors(parents, width - 1)
    depths = visible.sum(-1) - 1
    return tokens, parents, depths, visible, num_nodes


def children_of(parents, count, node):
    return [child for child in range(1, count) if int(parents[child]) == node]


def padded(values, length):
    return [*values, *[-1] * (length - len(values))]


@pytest.mark.parametrize("seed", range(5))
def test_what_follows_from_parents(seed):
    _, parents, depths, visible, num_nodes = random_trees(6, 20, 9, seed)
    ptr = child_ptr(parents, num_nodes)
    for row in range(6):
        count = int(num_nodes[row])
        for node in range(20):
            path = [node]
            while int(parents[row, path[-1]]) >= 0:
                path.append(int(parents[row, path[-1]]))
            assert visible[row, node].nonzero()[:, 0].tolist() == sorted(path)
            assert int(depths[row, node]) == len(path) - 1
            begin, end = ptr[row, node : node + 2].tolist()
            assert list(range(begin, end)) == children_of(parents[row], count, node)
        assert int(ptr[row, 0]) == 1
        assert int(ptr[row, -1]) == count


@pytest.mark.parametrize("seed", range(5))
def test_greedy_chains_stop_at_the_first_mismatch(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(64, 6, 3, generator=generator)
    tokens = torch.cat([torch.zeros(64, 1).long(), logits[:, :-1].argmax(-1)], 1)
    wrong = torch.rand(64, 6, generator=generator) < 0.2
    tokens = torch.where(wrong, (tokens + 1) % 3, tokens)
    num_nodes = torch.randint(1, 7, (64,), generator=generator)
    accepted, chosen = verify_greedy(tokens, logits, num_nodes)
    for row in range(64):
        choice = logits[row].argmax(-1).tolist()
        slot = 0
        while slot + 1 < int(num_nodes[row]) and int(tokens[row, slot + 1]) == choice[slot]:
            slot += 1
        assert (int(accepted[row]), chosen[row].tolist()) == (slot, choice)
    assert len(accepted.unique()) == 6


@pytest.mark.parametrize("seed", range(10))
def test_trees_are_walked_along_the_choices(seed):
    tokens, parents, depths, visible, num_nodes = random_trees(16, 24, 4, seed)
    choice = torch.randint(0, 4, tokens.shape, generator=torch.Generator().manual_seed(seed))
    max_depth = int(depths.max())
    accepted, nodes, path = verify_tree(
        tokens, parents, depths, visible, num_nodes, choice, max_depth=max_depth
    )
    for row in range(16):
        walked, committed = [0], []
        while True:
            wanted = int(choice[row, walked[-1]])
            committed.append(wanted)
            follow = [
                child
                for child in children_of(parents[row], int(num_nodes[row]), walked[-1])
                if int(tokens[row, child]) == wanted
            ]
            if not follow:
                break
            walked.append(follow[0])
        assert int(accepted[row]) == len(walked) - 1
        assert nodes[row].tolist() == padded(walked, max_depth + 1)
        assert path[row].tolist() == padded(committed, max_depth + 1)


def test_padding_is_never_accepted():
    """Padding has token 0 and may be what the target chose."""
    tokens = torch.tensor([[5, 0, 0]])
    logits = torch.zeros(1, 3, 4)
    assert verify_greedy(tokens, logits, torch.tensor([1]))[0].tolist() == [0]
    parents = torch.tensor([[-1, -1, -1]])
    visible = ancestors(parents, 2)
    depths = torch.zeros_like(parents)
    accepted, nodes, path = verify_tree(
        tokens, parents, depths, visible, torch.tensor([1]), torch.zeros_like(tokens), max_depth=2
    )
    assert (accepted.tolist(), nodes.tolist(), path.tolist()) == ([0], [[0, -1, -1]], [[0, -1, -1]])


def reject_one(row, trees, probs, ids, draft, seeds, positions):
    """Recursive rejection for one request, in the words of the papers."""
    tokens, parents, depths, _, num_nodes = (x[row] for x in trees)
    node, walked, committed = 0, [0], []
    seed = seeds[row : row + 1]
    while True:
        position = positions[row : row + 1] + depths[node] + 1
        p = probs[row, node].double()
        q = torch.zeros_like(p).scatter(0, ids[row, node], draft[row, node].double())
        accepted = None
        for rank, child in enumerate(children_of(parents, int(num_nodes), node)):
            token = int(tokens[child])
            noise = float(uniform(seed, position, ACCEPT + STREAMS * rank))
            q = q / q.sum()
            if noise * q[token] < p[token]:
                accepted = child
                break
            p = (p - q).clamp(min=0)
            p = p / p.sum()
            q[token] = 0
        if accepted is None:
            refused = bool(children_of(parents, int(num_nodes), node))
            noise = float(uniform(seed, position, RESIDUAL if refused else TARGET))
            committed.append(int((p.cumsum(0) <= noise * p.sum()).sum()))
            return walked, committed
        node = accepted
        walked.append(node)
        committed.append(int(tokens[node]))


@pytest.mark.parametrize("widest", [1, 4])
@pytest.mark.parametrize("seed", range(6))
def test_rejection_is_that_of_the_papers(seed, widest):
    vocab, candidates, batch, width = 11, 6, 40, 12
    generator = torch.Generator().manual_seed(seed)
    trees = random_trees(batch, width, vocab, seed, widest)
    tokens, parents, depths, visible, num_nodes = trees
    probs = (torch.randn(batch, width, vocab, generator=generator) * 2).softmax(-1)
    probs[::5] = torch.nn.functional.one_hot(probs[::5].argmax(-1), vocab).float()  # greedy requests
    ids = torch.rand(batch, width, vocab, generator=generator).argsort(-1)[..., :candidates]
    draft = torch.randn(batch, width, candidates, generator=generator).softmax(-1)
    for row in range(batch):  # children are among the candidates of their parent
        for node in range(int(num_nodes[row])):
            for rank, child in enumerate(children_of(parents[row], int(num_nodes[row]), node)):
                tokens[row, child] = ids[row, node, rank]
    seeds = torch.randint(0, 2**62, (batch,), generator=generator)
    positions = torch.randint(0, 1000, (batch,), generator=generator)
    max_depth = int(depths.max())
    accepted, nodes, path = verify_rejection(
        tokens, parents, depths, visible, num_nodes, probs, ids, draft, seeds, positions,
        max_depth=max_depth, max_children=widest,
    )  # fmt: skip
    for row in range(batch):
        walked, committed = reject_one(row, trees, probs, ids, draft, seeds, positions)
        assert nodes[row].tolist() == padded(walked, max_depth + 1)
        assert path[row].tolist() == padded(committed, max_depth + 1)
        assert int(accepted[row]) == len(walked) - 1
    assert len(accepted.unique()) > 1


def test_a_draft_that_is_the_target_is_always_accepted():
    probs = torch.randn(500, 2, 9, generator=torch.Generator().manual_seed(1)).softmax(-1)
    ids = torch.arange(9).expand(500, 2, 9)
    tokens = torch.randint(0, 9, (500, 2), generator=torch.Generator().manual_seed(2))
    parents = torch.tensor([-1, 0]).expand(500, 2)
    accepted, *_ = verify_rejection(
        tokens,
        parents,
        parents + 1,
        ancestors(parents, 1),
        torch.full((500,), 2),
        probs,
        ids,
        probs,
        torch.arange(500),
        torch.zeros(500, dtype=torch.int64),
        max_depth=1,
        max_children=1,
    )
    assert bool((accepted == 1).all())


def test_an_unknown_implementation_is_refused_by_name():
    with pytest.raises(ValueError, match=r"verify_greedy has no implementation 'fast'\. It has: reference"):
        verify_greedy(torch.zeros(1, 1).long(), torch.zeros(1, 1, 2), torch.ones(1).long(), impl="fast")
