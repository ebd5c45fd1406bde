"""Sampled verification is lossless: the first three tokens together have the target's exact distribution."""

import pytest
import torch
from distribution_check import ALPHA, assert_distributed, chi_square_p
from markov import (
    decode,
    drawn_tree,
    exact_joint,
    many,
    markov_pair,
    plain,
    point_chain,
    point_tree,
    walked_chain,
)

from dflash_core.sampling import SamplingParams
from dflash_core.verify.sampling import SamplingVerifier
from dflash_kernels.verify_rejection import reference as rejection

SAMPLES = 20_000
LENGTH = 3
VOCAB = 7
CHAIN = [-1, 0, 1, 2]
BUSHY = [-1, 0, 0, 0, 1, 1, 2, 4, 4]

SETTINGS = {
    "no filters": SamplingParams(temperature=1.0),
    "top-k": SamplingParams(temperature=0.6, top_k=3),
    "top-p": SamplingParams(temperature=1.0, top_p=0.8),
    "all filters": SamplingParams(temperature=1.5, top_k=5, top_p=0.9, min_p=0.1),
}
PROPOSALS = {
    "plain": plain,
    "point-mass chain": point_chain(4),
    "point-mass tree": point_tree(depth=3, ranks=4, budget=9),
    "drawn chain": drawn_tree(CHAIN, VOCAB),
    "drawn chain of 3 candidates": drawn_tree(CHAIN, 3),
    "walked chain": walked_chain(4, VOCAB),
    "walked chain of 3 candidates": walked_chain(4, 3),
    "drawn tree": drawn_tree(BUSHY, VOCAB),
    "drawn tree of 3 candidates": drawn_tree(BUSHY, 3),
}


def sampled(propose, params, samples=SAMPLES, agreement=1.0):
    target, draft = markov_pair(VOCAB, seed=5, agreement=agreement)
    tokens, accepted = decode(
        target, draft, propose, SamplingVerifier(), many(samples, params), anchor=2, length=LENGTH
    )
    return target, tokens, accepted


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("proposal", PROPOSALS)
def test_three_tokens_have_the_targets_distribution(proposal, settings):
    params = SETTINGS[settings]
    target, tokens, accepted = sampled(PROPOSALS[proposal], params)
    assert_distributed(tokens, exact_joint(target, 2, LENGTH, params), f"{proposal}, {settings}")
    if proposal != "plain":
        assert float(accepted.double().mean()) > 0.2  # otherwise the test says little


@pytest.mark.parametrize("proposal", ["point-mass tree", "drawn chain", "walked chain", "drawn tree"])
def test_a_draft_that_wants_the_opposite_does_no_harm(proposal):
    params = SETTINGS["all filters"]
    target, tokens, _ = sampled(PROPOSALS[proposal], params, agreement=-1.0)
    assert_distributed(tokens, exact_joint(target, 2, LENGTH, params), f"{proposal}, opposite draft")


def test_siblings_raise_acceptance():
    """Or recursive rejection would be pointless."""
    params = SETTINGS["no filters"]
    _, _, one = sampled(drawn_tree([-1, 0], VOCAB), params)
    _, _, three = sampled(drawn_tree([-1, 0, 0, 0], VOCAB), params)
    assert float(three.double().mean()) > float(one.double().mean()) + 0.2


def without_residual(monkeypatch):
    """After a refusal the target is drawn from as if nothing had been refused."""
    edges = rejection._edges

    def broken(tokens, ptr, target, *rest):
        return edges(tokens, ptr, target, *rest)[0], target

    monkeypatch.setattr(rejection, "_edges", broken)


def same_noise_for_accepting_and_drawing(monkeypatch):
    monkeypatch.setattr(rejection, "RESIDUAL", rejection.ACCEPT)


def same_noise_for_all_siblings(monkeypatch):
    monkeypatch.setattr(rejection, "STREAMS", 0)


@pytest.mark.parametrize(
    ("breakage", "parents"),
    [
        (without_residual, CHAIN),
        (without_residual, BUSHY),
        (same_noise_for_accepting_and_drawing, CHAIN),
        (same_noise_for_all_siblings, BUSHY),
    ],
)
def test_a_wrong_verifier_is_found_out(breakage, parents, monkeypatch):
    """The harness can tell: each of these was once somebody's bug."""
    breakage(monkeypatch)
    params = SETTINGS["no filters"]
    target, tokens, _ = sampled(drawn_tree(parents, VOCAB), params)
    with pytest.raises(AssertionError, match=r"chi-square p = .*below"):
        assert_distributed(tokens, exact_joint(target, 2, LENGTH, params), breakage.__name__)


def test_noise_that_ignores_the_position_is_found_out(monkeypatch):
    """Tokens would be right one by one, and wrong together."""
    monkeypatch.setattr(
        "dflash_core.sampling.SamplingBatch.decided", lambda self, depths: torch.zeros_like(depths)
    )
    params = SETTINGS["no filters"]
    target, tokens, _ = sampled(point_chain(4), params)
    joint = exact_joint(target, 2, LENGTH, params)
    assert_distributed(tokens[:, :1], joint.sum((1, 2)), "first token")
    with pytest.raises(AssertionError, match=r"chi-square p = .*below"):
        assert_distributed(tokens, joint, "all tokens")


def test_the_harness_alarms_at_its_stated_rate():
    """True samples: p-values are uniform, so few are small."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(50, generator=generator).double()
    probs /= probs.sum()
    values = []
    for _ in range(300):
        samples = torch.multinomial(probs, 20_000, replacement=True, generator=generator)
        values.append(chi_square_p(torch.bincount(samples, minlength=50), probs))
    values = torch.tensor(values)
    assert 3 <= int((values < 0.05).sum()) <= 32
    assert bool((values > ALPHA).all())
