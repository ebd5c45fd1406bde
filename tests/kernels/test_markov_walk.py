"""The Markov head's walk, greedy and sampled, over all tokens and over the likeliest."""

import itertools

import pytest
import torch

from dflash_kernels.markov_walk import markov_walk

VOCAB, RANK = 23, 5


def arguments(batch=2, slots=3, count=VOCAB, dtype=torch.float32):
    """`count` tokens a slot, in any order; all of them by default."""
    generator = torch.Generator().manual_seed(batch + slots + count)
    ids = torch.rand(batch, slots, VOCAB, generator=generator).argsort(-1)[..., :count]
    return {
        "unary": torch.randn(batch, slots, count, generator=generator),
        "ids": ids,
        "before": torch.randn(VOCAB, RANK, generator=generator).to(dtype),
        "after": torch.randn(VOCAB, RANK, generator=generator).to(dtype),
        "anchors": torch.randint(0, VOCAB, (batch,), generator=generator),
    }


def logits_after(given, row, slot, token):
    """[K]: a plain loop over the tokens offered."""
    own = given["unary"][row, slot].tolist()
    pull = [
        sum(a * b for a, b in zip(given["before"][token].tolist(), given["after"][i].tolist(), strict=True))
        for i in given["ids"][row, slot]
    ]
    return torch.tensor([left + right for left, right in zip(own, pull, strict=True)])


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 3, VOCAB), (3, 7, 6)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_each_pick_is_the_best_after_the_pick_before(shape, dtype):
    given = arguments(*shape, dtype=dtype)
    picks, scores = markov_walk(**given)
    for row in range(shape[0]):
        token = given["anchors"][row]
        for slot in range(shape[1]):
            expected = logits_after(given, row, slot, token)
            torch.testing.assert_close(scores[row, slot], expected)
            assert picks[row, slot] == expected.argmax()
            token = given["ids"][row, slot, picks[row, slot]]


def test_the_order_in_which_tokens_are_offered_changes_nothing():
    given = arguments()
    order = torch.rand(given["ids"].shape).argsort(-1)
    shuffled = {name: given[name].gather(-1, order) for name in ("unary", "ids")}
    tokens = [
        one["ids"].gather(-1, markov_walk(**one)[0][..., None]) for one in (given, {**given, **shuffled})
    ]
    assert torch.equal(*tokens)


def test_sampled_paths_have_the_probabilities_of_the_chain_rule():
    given = arguments(1, 2, 3)
    draws = 20_000
    many = {
        name: x if name in ("before", "after") else x.expand(draws, *x.shape[1:]) for name, x in given.items()
    }
    uniforms = torch.rand(draws, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    picks, _ = markov_walk(**many, temperature=torch.full((draws,), 0.8), uniforms=uniforms)
    for first, second in itertools.product(range(3), repeat=2):
        token = given["ids"][0, 0, first]
        chance = (logits_after(given, 0, 0, given["anchors"][0]) / 0.8).softmax(0)[first]
        chance = chance * (logits_after(given, 0, 1, token) / 0.8).softmax(0)[second]
        seen = ((picks[:, 0] == first) & (picks[:, 1] == second)).float().mean()
        assert abs(seen - chance) < 5 * (chance * (1 - chance) / draws) ** 0.5 + 1e-9


def test_rows_at_temperature_zero_walk_greedily_among_sampled_ones():
    given = arguments(4, 6)
    greedy, _ = markov_walk(**given)
    uniforms = torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    mixed, _ = markov_walk(**given, temperature=torch.tensor([0.0, 5.0, 0.0, 5.0]), uniforms=uniforms)
    assert torch.equal(mixed[::2], greedy[::2])
    assert not torch.equal(mixed[1::2], greedy[1::2])
