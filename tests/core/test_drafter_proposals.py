"""Sampled proposals are drawn from the distribution they carry; trees hold the likeliest candidates."""

import pytest
import torch
from drafter_spec import markov_spec, random_checkpoint, second_spec, small_spec, spark_spec
from drafter_target import StubTarget, plan

from dflash_core.drafter.block import BlockDrafter
from dflash_core.sampling import SamplingParams, sampling_batch

SPECS = {"first": small_spec(), "second": second_spec(), "markov": markov_spec(), "spark": spark_spec()}
CONTEXT = 9


def start(spec, count, **options):
    """A drafter, and a context of `count` requests that are alike."""
    drafter = BlockDrafter(random_checkpoint(spec), StubTarget(spec), **options)
    context = drafter.start()
    taps = torch.randn(CONTEXT, spec.tap_width, generator=torch.Generator().manual_seed(3))
    for _ in range(count):
        drafter.join(context, [0] * CONTEXT, taps)
    return drafter, context


def propose(drafter, context, params, blocks=None, lengths=None, trees=None):
    count = len(params)
    sampling = sampling_batch(params, context.lengths)
    anchors = torch.full((count,), 11)
    return drafter.propose(anchors, context, plan(blocks or [4] * count, lengths, trees), sampling)


@pytest.mark.parametrize(
    ("name", "mode", "samples"),
    [
        ("first", "auto", False),
        ("first", "sample", True),
        ("first", "argmax", False),
        ("second", "auto", True),
        ("second", "sample", True),
        ("second", "argmax", False),
        ("markov", "auto", True),
        ("spark", "auto", True),
        ("spark", "argmax", False),
    ],
)
def test_only_sampling_carries_a_distribution(name, mode, samples):
    drafter, context = start(SPECS[name], 2, proposal=mode)
    greedy = propose(drafter, context, [SamplingParams()] * 2)
    assert greedy.distribution is None
    warm = propose(drafter, context, [SamplingParams(temperature=0.9, seed=1)] * 2)
    assert (warm.distribution is not None) == samples
    if not samples:
        assert torch.equal(warm.tree.tokens, greedy.tree.tokens)


@pytest.mark.parametrize("name", SPECS)
def test_tokens_are_drawn_from_the_distribution_given_for_them(name):
    """Over 2,000 seeds, every token is as frequent as its row says: 5 standard deviations a cell."""
    count = 2000
    params = [SamplingParams(temperature=0.7, seed=seed) for seed in range(count)]
    drafter, context = start(SPECS[name], count, proposal="sample")
    proposal = propose(drafter, context, params, [3] * count)
    q = proposal.distribution
    torch.testing.assert_close(q.probs[:, :2].sum(-1), torch.ones(count, 2))
    tokens = proposal.tree.tokens
    first = torch.zeros(SPECS[name].vocab_size).scatter_add_(0, q.ids[0, 0], q.probs[0, 0])
    compare(tokens[:, 1], first.expand(count, -1))
    dense = torch.zeros(count, SPECS[name].vocab_size).scatter_add_(1, q.ids[:, 1], q.probs[:, 1])
    compare(tokens[:, 2], dense)


def compare(tokens, probs):
    """[n] tokens against the [n, V] distributions they were drawn from."""
    seen = torch.bincount(tokens, minlength=probs.shape[1])
    expected, spread = probs.sum(0), (probs * (1 - probs)).sum(0).sqrt()
    assert ((seen - expected).abs() <= 5 * spread + 1e-3).all()
    assert (seen > 0).sum() > 3


@pytest.mark.parametrize("name", SPECS)
def test_a_sample_depends_on_the_requests_seed_and_not_on_its_neighbours(name):
    params = [SamplingParams(temperature=t, seed=seed) for t, seed in ((1.0, 5), (0.0, 6), (1.3, 7))]
    drafter, context = start(SPECS[name], 3, proposal="sample")
    together = propose(drafter, context, params, [4, 4, 3])
    for row, block in enumerate([4, 4, 3]):
        alone_drafter, alone = start(SPECS[name], 1, proposal="sample")
        single = propose(alone_drafter, alone, [params[row]], [block])
        assert single.tree.tokens[0].tolist() == together.tree.tokens[row, :block].tolist()
    again = propose(drafter, context, params, [4, 4, 3])
    assert torch.equal(again.tree.tokens, together.tree.tokens)
    other = propose(drafter, context, [SamplingParams(temperature=1.3, seed=s) for s in (50, 51, 52)])
    assert not torch.equal(other.tree.tokens, together.tree.tokens)


@pytest.mark.parametrize("name", SPECS)
def test_a_greedy_row_among_sampled_ones_is_one_hot(name):
    drafter, context = start(SPECS[name], 2, proposal="sample")
    greedy = propose(drafter, context, [SamplingParams()] * 2)
    mixed = propose(drafter, context, [SamplingParams(), SamplingParams(temperature=1.0)])
    assert mixed.tree.tokens[0].tolist() == greedy.tree.tokens[0].tolist()
    q = mixed.distribution
    best = q.probs[0, :3].max(-1, keepdim=True)
    assert best.values[:, 0].tolist() == [1, 1, 1]
    assert q.ids[0, :3].gather(1, best.indices)[:, 0].tolist() == mixed.tree.tokens[0, 1:].tolist()


def paths(tree, row):
    """Every node as the tokens from the root down to it."""
    found = []
    for node in range(1, int(tree.num_nodes[row])):
        path, at = [], node
        while at > 0:
            path.append(int(tree.tokens[row, at]))
            at = int(tree.parents[row, at])
        found.append(tuple(reversed(path)))
    return found


@pytest.mark.parametrize("name", SPECS)
def test_a_tree_holds_the_likeliest_paths_of_its_budget(name):
    drafter, context = start(SPECS[name], 1)
    captured = []
    drafter.head.register_forward_hook(lambda module, args, out: captured.append(out))
    chain = propose(drafter, context, [SamplingParams()], [4])
    proposal = propose(drafter, context, [SamplingParams()], [4], trees=[12])
    tree = proposal.tree
    assert int(tree.num_nodes[0]) == 13
    found = paths(tree, 0)
    assert len(set(found)) == 12
    assert tuple(chain.tree.tokens[0, 1:2].tolist()) in found
    assert max(map(len, found)) <= 3
    if name == "first":
        marginals = captured[-1][0].log_softmax(-1)
        scores = {path: sum(float(marginals[d, t]) for d, t in enumerate(path)) for path in found}
        worst = min(scores.values())
        best_left_out = max(
            float(marginals[0, t]) for t in range(SPECS[name].vocab_size) if (t,) not in scores
        )
        assert worst >= best_left_out - 1e-5
        for node, path in enumerate(found, 1):
            assert abs(float(proposal.log_probs[0, node]) - float(marginals[len(path) - 1, path[-1]])) < 1e-5


@pytest.mark.parametrize("make", [small_spec, second_spec, spark_spec])
def test_a_tree_goes_no_deeper_than_its_verify_length(make):
    """Even where the draft is so sure of itself that a tree would rather be deep than wide."""
    drafter, context = start(make(output_multiplier=50.0), 2)
    proposal = propose(drafter, context, [SamplingParams()] * 2, [5, 5], [5, 2], [4, 4])
    assert proposal.tree.depths.amax(1).tolist() == [4, 1]


@pytest.mark.parametrize("name", SPECS)
def test_chains_trees_and_plain_rows_share_a_batch(name):
    drafter, context = start(SPECS[name], 4)
    params = [SamplingParams(temperature=0.8, seed=row) for row in range(4)]
    proposal = propose(drafter, context, params, [4, 5, 1, 5], [3, 4, 1, 2], [None, 20, 30, 3])
    tree = proposal.tree
    assert tree.num_nodes.tolist() == [3, 21, 1, 4]
    assert tree.parents[0, :3].tolist() == [-1, 0, 1]
    chain = propose(drafter, context, params, [4, 5, 5, 5])
    if chain.distribution is None:
        assert proposal.distribution is None
    else:
        assert proposal.distribution.drawn.tolist() == [True, False, True, False]
        assert torch.equal(proposal.distribution.ids[0, :2], chain.distribution.ids[0, :2])
        # Its block is padded to five slots among the others: the same sums, with zeros among them.
        ours, alone = proposal.distribution.probs[0, :2], chain.distribution.probs[0, :2]
        torch.testing.assert_close(ours, alone, rtol=0, atol=1e-7)
    assert tree.tokens[0, :3].tolist() == chain.tree.tokens[0, :3].tolist()
    assert tree.depths.amax(1).tolist()[0] == 2
    assert tree.depths.amax(1).tolist()[1] <= 3
    assert tree.depths.amax(1).tolist()[2:] == [0, 1]
    assert tree.tokens[:, 0].tolist() == [11] * 4
