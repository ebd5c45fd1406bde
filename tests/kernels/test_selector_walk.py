"""The selector's walk, greedy and sampled, and the distributions it draws from."""

import itertools

import pytest
import torch

from dflash_kernels.candidate_probs import candidate_probs
from dflash_kernels.selector_walk import selector_walk

VOCAB, RANK = 23, 5


def arguments(batch=2, slots=3, count=4):
    torch.manual_seed(batch + slots + count)
    return {
        "unary": torch.randn(batch, slots, count),
        "ids": torch.stack([torch.randperm(VOCAB)[:count] for _ in range(batch * slots)]).view(
            batch, slots, count
        ),
        "hidden": torch.randn(batch, slots, RANK),
        "predecessors": torch.randn(VOCAB, RANK),
        "successors": torch.randn(VOCAB, RANK),
        "anchors": torch.randint(0, VOCAB, (batch,)),
    }


def score_after(given, row, slot, token):
    """Scores [K] of a slot's candidates after a token."""
    pull = given["predecessors"][token] * given["hidden"][row, slot]
    return given["unary"][row, slot] + given["successors"][given["ids"][row, slot]] @ pull


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, 4), (5, 15, 16)], ids=str)
def test_each_pick_is_the_best_after_the_pick_before(shape):
    given = arguments(*shape)
    picks, scores = selector_walk(**given)
    for row in range(shape[0]):
        token = given["anchors"][row]
        for slot in range(shape[1]):
            expected = score_after(given, row, slot, token)
            torch.testing.assert_close(scores[row, slot], expected)
            assert picks[row, slot] == expected.argmax()
            token = given["ids"][row, slot, picks[row, slot]]


def test_sampled_paths_have_the_probabilities_of_the_chain_rule():
    given = arguments(1, 2, 3)
    draws = 20_000
    many = {
        name: x.expand(draws, *x.shape[1:]) if name not in ("predecessors", "successors") else x
        for name, x in given.items()
    }
    uniforms = torch.rand(draws, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    picks, _ = selector_walk(**many, temperature=torch.full((draws,), 0.8), uniforms=uniforms)
    for first, second in itertools.product(range(3), repeat=2):
        token = given["ids"][0, 0, first]
        chance = (score_after(given, 0, 0, given["anchors"][0]) / 0.8).softmax(0)[first]
        chance = chance * (score_after(given, 0, 1, token) / 0.8).softmax(0)[second]
        seen = ((picks[:, 0] == first) & (picks[:, 1] == second)).float().mean()
        assert abs(seen - chance) < 5 * (chance * (1 - chance) / draws) ** 0.5 + 1e-9


def test_rows_at_temperature_zero_walk_greedily_among_sampled_ones():
    given = arguments(4, 6, 5)
    greedy, _ = selector_walk(**given)
    uniforms = torch.rand(4, 6, dtype=torch.float64)
    mixed, _ = selector_walk(**given, temperature=torch.tensor([0.0, 5.0, 0.0, 5.0]), uniforms=uniforms)
    assert torch.equal(mixed[::2], greedy[::2])
    assert not torch.equal(mixed[1::2], greedy[1::2])


def test_candidate_probs_are_a_softmax_or_one_hot():
    scores = torch.tensor([[[1.0, 3.0, 2.0]], [[1.0, 3.0, 2.0]], [[1e4, -1e4, 0.0]]])
    probs = candidate_probs(scores, torch.tensor([0.5, 0.0, 1e-3]))
    torch.testing.assert_close(probs[0, 0], (scores[0, 0] / 0.5).softmax(0))
    assert probs[1, 0].tolist() == [0.0, 1.0, 0.0]
    assert probs[2, 0].tolist() == [1.0, 0.0, 0.0]
