"""Trees of a draft with a selector or a Markov head: each node as likely as it is after its own parent."""

import itertools
from dataclasses import replace

import pytest
import torch
from drafter_spec import random_checkpoint, second_spec, small_spec
from drafter_target import StubTarget, plan

from dflash_core.drafter.block import BlockDrafter
from dflash_core.sampling import SamplingParams, sampling_batch
from dflash_core.spec import MarkovSpec
from dflash_core.training.start import TABLES

ANCHOR, BLOCK, CONTEXT = 11, 4, 9
DEPTH = BLOCK - 1


@pytest.fixture(autouse=True, params=["selector", "markov"])
def kind(request, monkeypatch):
    """Both with six candidates a slot."""
    monkeypatch.setattr("dflash_core.drafter.markov.CANDIDATES", 6)
    specs = {"selector": second_spec(), "markov": small_spec(markov=MarkovSpec(5))}
    monkeypatch.setattr(Case, "spec", specs[request.param])


class Case:
    """A random draft after a random context, and its own opinion of any path."""

    spec = second_spec()

    def __init__(self, seed, **changes):
        spec = replace(self.spec, **changes)
        checkpoint = random_checkpoint(spec, seed)
        for name, tensor in checkpoint.tensors.items():
            if name in TABLES or name in TABLES.values():  # so that the token before matters
                tensor *= 3
        self.drafter = BlockDrafter(checkpoint, StubTarget(spec, seed), fast="off")
        self.context = self.drafter.start()
        taps = torch.randn(CONTEXT, spec.tap_width, generator=torch.Generator().manual_seed(seed))
        self.drafter.join(self.context, [0] * CONTEXT, taps)
        self.drafter.head.register_forward_hook(self._keep)

    def _keep(self, module, args, logits):
        self.hidden, self.logits = args[0][0], logits[0]

    def propose(self, budget=None):
        sampling = sampling_batch([SamplingParams()], self.context.lengths)
        shape = plan([BLOCK], None, [budget])
        return self.drafter.propose(torch.tensor([ANCHOR]), self.context, shape, sampling)

    def after(self, slot, before):
        """{candidate: log-probability} of a slot after a token."""
        chooser = self.drafter.selector
        unary, ids = self.logits[slot].topk(6)
        if self.spec.markov:
            scores = unary + chooser.after[ids] @ chooser.before[before]
        else:
            pull = chooser.predecessors[before] * chooser.hidden_projection(self.hidden[slot])
            scores = unary + chooser.successors[ids] @ pull
        scores = scores.log_softmax(-1)
        return dict(zip(ids.tolist(), scores.tolist(), strict=True))

    def every_path(self):
        """{tokens: log-probability} of all paths of the block."""
        found, level = {}, {(): 0.0}
        for slot in range(DEPTH):
            level = {
                (*path, token): score + own
                for path, score in level.items()
                for token, own in self.after(slot, path[-1] if path else ANCHOR).items()
            }
            found |= level
        return found


def paths(tree):
    """Every node besides the anchor as the tokens from the anchor's child down to it."""
    return [tuple(tree.tokens[0][seen].tolist()[1:]) for seen in tree.visible[0, 1 : int(tree.num_nodes[0])]]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("budget", [3, 25, 258])
def test_the_nodes_are_the_likeliest_paths_and_carry_their_log_probs(budget, seed):
    """258 nodes are all there are, and more than are built on the host."""
    case = Case(seed)
    proposal = case.propose(budget)
    found = paths(proposal.tree)
    for node, path in enumerate(found, 1):
        wanted = case.after(len(path) - 1, path[-2] if len(path) > 1 else ANCHOR)[path[-1]]
        assert float(proposal.log_probs[0, node]) == pytest.approx(wanted, abs=1e-4)
    everything = case.every_path()
    assert len(set(found)) == budget
    best = sorted(everything.values(), reverse=True)[:budget]
    assert sorted((everything[path] for path in found), reverse=True) == pytest.approx(best, abs=1e-4)


def test_children_of_siblings_are_ordered_and_scored_on_their_own():
    """What a tree could not say as long as all nodes of a depth shared their scores."""
    orders = set()
    proposal = Case(0).propose(258)
    children = {}
    for path in paths(proposal.tree):
        children.setdefault(path[:-1], []).append(path[-1])
    for first, second in itertools.combinations([path for path in children if len(path) == 1], 2):
        assert set(children[first]) == set(children[second])
        orders.add(children[first] == children[second])
    assert False in orders


@pytest.mark.parametrize("seed", range(4))
def test_first_children_follow_the_greedy_walk(seed):
    case = Case(seed)
    walk = tuple(case.propose().tree.tokens[0, 1:].tolist())
    found = paths(case.propose(12).tree)
    assert walk[:1] == found[0]
    first = {}
    for path in found:
        first.setdefault(path[:-1], path)
    at = ()
    while at in first:
        at = first[at]
    assert at == walk[: len(at)]


@pytest.mark.parametrize("seed", range(4))
def test_where_the_walk_is_the_best_path_the_tree_is_the_walk(seed):
    case = Case(seed, output_multiplier=200.0)
    chain, tree = case.propose(), case.propose(DEPTH)
    assert torch.equal(tree.tree.tokens, chain.tree.tokens)
    assert torch.equal(tree.tree.visible, chain.tree.visible)
    torch.testing.assert_close(tree.log_probs, chain.log_probs)
