"""Sampling probabilities are those of transformers' warpers, one after the other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dflash_kernels.sampling_probs import candidates, sampling_probs


def warped(logits, temperature, top_k, top_p, min_p):
    """[n, V] float64 of transformers, in its own order."""
    chain = LogitsProcessorList([TemperatureLogitsWarper(float(temperature))])
    if top_k:
        chain.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        chain.append(TopPLogitsWarper(top_p))
    if min_p:
        chain.append(MinPLogitsWarper(min_p))
    return chain(torch.zeros(len(logits), 1, dtype=torch.int64), logits.float()).double().softmax(-1)


def ours(logits, rows, **hints):
    temperature, top_k, top_p, min_p = zip(*rows, strict=True)
    return sampling_probs(
        logits,
        torch.tensor(temperature),
        torch.tensor(top_k),
        torch.tensor(top_p),
        torch.tensor(min_p),
        **hints,
    )


def near_a_limit(logits, temperature, top_k, top_p, min_p):
    """Whether rounding may decide: mass within 1e-5 of top-p's limit or a token within 1e-5 of min-p's."""
    before = warped(logits, temperature, top_k, 1.0, 0.0).sort(-1).values
    close = ((before.cumsum(-1) - (1 - top_p)).abs() < 1e-5).any(-1) & (top_p < 1)
    ratio = before / before.amax(-1, keepdim=True)
    return close | (((ratio - min_p).abs() < 1e-5).any(-1) & (min_p > 0))


def assert_same(logits, rows, **hints):
    """Equal up to which of equally likely tokens top-p drops: transformers sorts unstably."""
    probs = ours(logits, rows, **hints)
    assert probs.dtype == torch.float32
    for row, setting in enumerate(rows):
        wanted = warped(logits[row], *setting)
        decided = ~near_a_limit(logits[row], *setting)
        actual = probs[row].double()
        torch.testing.assert_close(actual.sum(-1), torch.ones_like(actual[:, 0]), rtol=0, atol=1e-5)
        actual, wanted, scores = actual[decided], wanted[decided], logits[row][decided].float()
        torch.testing.assert_close(actual.sort(-1).values, wanted.sort(-1).values, rtol=2e-5, atol=1e-9)
        kept = [scores.masked_fill(p < 1e-30, float("-inf")).sort(-1).values for p in (actual, wanted)]
        assert torch.equal(*kept)


row = st.tuples(
    st.sampled_from([0.1, 0.7, 1.0, 1.7]),
    st.sampled_from([0, 1, 2, 5, 40, 10_000]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    st.sampled_from([0.0, 0.02, 0.3, 1.0]),
)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(row, min_size=1, max_size=4),
    vocab=st.sampled_from([1, 2, 13, 300, 2000]),
    spread=st.sampled_from([0.3, 2.0, 6.0]),
    ties=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_any_settings_on_any_row(rows, vocab, spread, ties, seed):
    logits = torch.randn(len(rows), 3, vocab, generator=torch.Generator().manual_seed(seed)) * spread
    if ties:  # logits of half precision tie all the time
        logits = (logits * 4).round() / 4
    assert_same(logits, rows, max_top_k=max(r[1] for r in rows))


@pytest.mark.parametrize("hint", [0, 1, 7, 10**6])
def test_the_hint_about_top_k_changes_no_bit(hint):
    logits = torch.randn(4, 5, 3000, generator=torch.Generator().manual_seed(3)).bfloat16() * 2
    rows = [(1.0, 50, 0.9, 0.0), (0.8, 0, 0.95, 0.0), (1.3, 700, 1.0, 0.01), (1.0, 0, 1.0, 0.0)]
    assert torch.equal(ours(logits, rows, max_top_k=hint), ours(logits, rows))


def test_ties_with_the_kth_token_stay_however_many():
    logits = torch.zeros(1, 1, 1000)
    logits[0, 0, :3] = 1.0
    probs = ours(logits, [(1.0, 5, 1.0, 0.0)], max_top_k=5)
    assert bool((probs > 0).all())


def test_top_p_splits_a_tie_by_dropping_small_ids():
    logits = torch.zeros(1, 1, 1000)
    assert_same(logits, [(1.0, 0, 0.9005, 0.0)])
    probs = ours(logits, [(1.0, 0, 0.9005, 0.0)])[0, 0]
    assert probs.nonzero()[:, 0].tolist() == list(range(99, 1000))


def test_temperature_0_is_one_hot_on_the_first_best_token_whatever_the_filters():
    logits = torch.randn(3, 4, 700, generator=torch.Generator().manual_seed(0)).round() * 1e4
    rows = [(0.0, 0, 1.0, 0.0), (0.0, 5, 0.5, 0.5), (1.0, 0, 1.0, 0.0)]
    probs = ours(logits, rows)
    first = (logits == logits.amax(-1, keepdim=True)).float().argmax(-1)
    assert torch.equal(probs[:2], torch.nn.functional.one_hot(first, 700).float()[:2])


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-5, 1e30])
def test_extreme_temperatures_stay_finite(temperature):
    logits = torch.randn(1, 2, 50, generator=torch.Generator().manual_seed(0)) * 1e5
    probs = ours(logits, [(temperature, 3, 0.9, 0.0)])
    assert bool(probs.isfinite().all())
    torch.testing.assert_close(probs.sum(-1), torch.ones(1, 2))


def test_banned_tokens_stay_banned():
    logits = torch.randn(2, 2, 400, generator=torch.Generator().manual_seed(0))
    logits[..., 100:] = float("-inf")
    rows = [(1.0, 0, 1.0, 0.0), (1.0, 200, 0.99, 0.0)]
    assert bool((ours(logits, rows)[..., 100:] == 0).all())
    assert_same(logits, rows)


def test_a_row_does_not_depend_on_its_neighbours():
    """Bit by bit, or a request's tokens could change with who shares its batch."""
    logits = torch.randn(4, 3, 6000, generator=torch.Generator().manual_seed(9)) * 3
    rows = [(1.0, 0, 0.9, 0.0), (0.7, 40, 0.95, 0.01), (0.0, 0, 1.0, 0.0), (1.4, 0, 1.0, 0.0)]
    together = ours(logits, rows, max_top_k=40)
    for index, setting in enumerate(rows):
        alone = ours(logits[index : index + 1], [setting], filtered=index < 2, max_top_k=setting[1])
        assert torch.equal(alone[0], together[index])


def test_without_filters_nothing_is_ranked(monkeypatch):
    logits = torch.randn(1, 3, 6000, generator=torch.Generator().manual_seed(9))

    def fail(*_):
        raise AssertionError("looked for the best tokens")

    monkeypatch.setattr("dflash_kernels.sampling_probs.reference.best", fail)
    probs = ours(logits, [(0.7, 0, 1.0, 0.0)], filtered=False)
    torch.testing.assert_close(probs, (logits / 0.7).softmax(-1))


def test_where_the_host_may_not_look_the_bits_are_the_same(monkeypatch):
    logits = torch.randn(5, 3, 6000, generator=torch.Generator().manual_seed(2)).bfloat16() * 3
    rows = [(1.0, 50, 0.9, 0.0), (0.8, 0, 0.95, 0.0), (1.3, 700, 1.0, 0.01)]
    rows += [(1.0, 0, 1.0, 0.0), (0.0, 3, 0.5, 0.0)]
    wanted = ours(logits, rows, max_top_k=700)
    monkeypatch.setattr("dflash_kernels.sampling_probs.reference.may_look", lambda x: False)
    assert torch.equal(ours(logits, rows, max_top_k=700), wanted)


def test_a_peaked_row_is_not_sorted_whole(monkeypatch):
    logits = torch.randn(1, 3, 20_000, generator=torch.Generator().manual_seed(9)) * 5
    seen = []
    best = candidates.best
    monkeypatch.setattr(
        "dflash_kernels.sampling_probs.reference.best",
        lambda scores, width: (seen.append(width), best(scores, width))[1],
    )
    ours(logits, [(1.0, 50, 0.95, 0.0)], max_top_k=50)
    assert max(seen) < 100
