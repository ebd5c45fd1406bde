"""The check of tokens given their contexts alarms at its rate, and sees what it is there to see."""

import pytest
import torch
from conditional_check import conditional_p
from distribution_check import ALPHA

VOCAB = 40
SAMPLES = 3000
CHANCES = torch.arange(1, VOCAB + 1).double() ** -2
"""Of the contexts: some are seen a thousand times, some once."""


@pytest.fixture(scope="module")
def table():
    """The distribution of the next token after each context [V, V]; half of the tokens are impossible."""
    logits = 2 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0)).double()
    return logits.masked_fill(logits < 0, float("-inf")).softmax(-1)


def draw_pairs(table, seed):
    generator = torch.Generator().manual_seed(seed)
    contexts = torch.multinomial(CHANCES, SAMPLES, replacement=True, generator=generator)
    tokens = torch.multinomial(table[contexts], 1, generator=generator)
    return torch.cat([contexts[:, None], tokens], 1)


def p_of(samples, table):
    return conditional_p(samples, lambda context: table[context[0]])


def test_true_samples_give_p_values_that_are_uniform_or_larger(table):
    values = torch.tensor([p_of(draw_pairs(table, seed), table) for seed in range(100)])
    assert int((values < 0.05).sum()) <= 12
    assert 0.35 <= float(values.median()) <= 0.75
    assert bool((values > ALPHA).all())


def test_a_bias_after_common_contexts_is_seen(table):
    biased = 0.8 * table + 0.2 * torch.nn.functional.one_hot(table.argmax(-1), VOCAB)
    assert p_of(draw_pairs(biased, 0), table) < ALPHA


def test_a_bias_after_rare_contexts_alone_is_seen(table):
    """None of them is seen often enough to be tested by itself."""
    biased = table.clone()
    biased[10:] = torch.nn.functional.one_hot(table[10:].argmax(-1), VOCAB).double()
    assert p_of(draw_pairs(biased, 0), table) < ALPHA


def test_an_impossible_token_settles_it(table):
    samples = draw_pairs(table, 0)
    samples[0, 1] = int((table[samples[0, 0]] == 0).nonzero()[0])
    assert p_of(samples, table) == 0.0


def test_the_first_token_has_no_context(table):
    tokens = torch.multinomial(
        table[0], SAMPLES, replacement=True, generator=torch.Generator().manual_seed(0)
    )
    assert conditional_p(tokens[:, None], lambda context: table[0]) > ALPHA
    assert conditional_p(tokens[:, None], lambda context: table[1]) < ALPHA
