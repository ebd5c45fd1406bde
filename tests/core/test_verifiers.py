"""Verification changes how fast tokens come, not which: greedy or sampled, chain or tree, mixed batches."""

import pytest
import torch
from markov import (
    ANCHOR_POSITION,
    decode,
    drawn_tree,
    many,
    markov_pair,
    plain,
    point_chain,
    point_tree,
    warped,
)

from dflash_core.errors import UnsupportedError
from dflash_core.proposal import Proposal
from dflash_core.sampling import SamplingParams, sampling_batch
from dflash_core.tree import chain
from dflash_core.verify.choice import target_probs
from dflash_core.verify.greedy import GreedyVerifier
from dflash_core.verify.sampling import SamplingVerifier

VOCAB = 40
LENGTH = 16
PROPOSALS = {
    "chain": point_chain(5),
    "long chain": point_chain(16),
    "tree": point_tree(depth=4, ranks=5, budget=16),
    "wide tree": point_tree(depth=2, ranks=20, budget=40),
    "star": point_tree(depth=1, ranks=8, budget=8),
    "tree of one branch": point_tree(depth=3, ranks=1, budget=6),
}
DRAWN = {
    "drawn chain": drawn_tree([-1, 0, 1, 2, 3], 8),
    "drawn tree": drawn_tree([-1, 0, 0, 0, 1, 1, 2, 4], 8),
}
MIXED = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=11),
    SamplingParams(temperature=0.7, top_k=5, seed=2**63 - 1),
    SamplingParams(temperature=1.3, top_p=0.8, seed=0),
    SamplingParams(temperature=0.0, top_k=5, seed=12),
    SamplingParams(temperature=1.0, min_p=0.2, top_k=30, seed=13),
]


def answer(propose, sampling, verifier=None, agreement=1.0):
    target, draft = markov_pair(VOCAB, seed=3, agreement=agreement)
    return decode(target, draft, propose, verifier or SamplingVerifier(), sampling, anchor=1, length=LENGTH)


def batch_of(params):
    return sampling_batch(params, [ANCHOR_POSITION] * len(params))


@pytest.mark.parametrize("verifier", [GreedyVerifier(), SamplingVerifier()], ids=lambda v: v.name)
@pytest.mark.parametrize("proposal", [*PROPOSALS, *DRAWN])
def test_greedy_output_is_plain_greedy_decoding(proposal, verifier):
    sampling = many(12, SamplingParams())
    wanted, _ = answer(plain, sampling, verifier)
    tokens, accepted = answer((PROPOSALS | DRAWN)[proposal], sampling, verifier)
    assert torch.equal(tokens, wanted)
    assert int(accepted.sum()) > LENGTH


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.8, top_k=6),
        SamplingParams(temperature=1.2, top_p=0.85, min_p=0.02),
    ],
)
def test_point_mass_drafts_give_the_very_tokens_of_plain_sampling(proposal, params):
    sampling = many(20, params, first_seed=77)
    wanted, _ = answer(plain, sampling)
    tokens, accepted = answer(PROPOSALS[proposal], sampling)
    assert torch.equal(tokens, wanted)
    assert int(accepted.sum()) > LENGTH
    assert len({tuple(row) for row in tokens.tolist()}) > 15  # seeds matter


def test_a_draft_may_be_as_bad_as_it_likes():
    sampling = many(20, SamplingParams(temperature=1.0))
    wanted, _ = answer(plain, sampling)
    for agreement in (-1.0, 0.0, 5.0):
        tokens, _ = answer(PROPOSALS["tree"], sampling, agreement=agreement)
        assert torch.equal(tokens, wanted)


@pytest.mark.parametrize("proposal", ["plain", *PROPOSALS, *DRAWN])
def test_a_request_does_not_notice_who_shares_its_batch(proposal):
    propose = ({"plain": plain} | PROPOSALS | DRAWN)[proposal]
    together, _ = answer(propose, batch_of(MIXED))
    for index, params in enumerate(MIXED):
        alone, _ = answer(propose, batch_of([params]))
        assert torch.equal(alone[0], together[index]), params


@pytest.mark.parametrize("proposal", [*PROPOSALS, *DRAWN])
def test_greedy_requests_stay_greedy_among_sampled_ones(proposal):
    greedy, _ = answer(plain, many(1, SamplingParams()))
    tokens, _ = answer((PROPOSALS | DRAWN)[proposal], batch_of(MIXED))
    assert torch.equal(tokens[0], greedy[0])
    assert torch.equal(tokens[4], greedy[0])
    assert not torch.equal(tokens[1], greedy[0])


def test_the_greedy_verifier_refuses_to_ignore_a_temperature():
    proposal = Proposal(chain(torch.tensor([[1, 2]]), torch.tensor([2])))
    sampling = batch_of([SamplingParams(temperature=0.5)])
    with pytest.raises(UnsupportedError, match='use the verifier "sampling"'):
        GreedyVerifier().verify(proposal, torch.zeros(1, 2, 4), sampling)


def test_every_verifier_says_that_it_is_lossless():
    assert [(v.name, v.lossless) for v in (GreedyVerifier(), SamplingVerifier())] == [
        ("greedy", True),
        ("sampling", True),
    ]


def test_each_request_is_sampled_from_its_own_settings():
    logits = torch.randn(len(MIXED), 2, VOCAB, generator=torch.Generator().manual_seed(0))
    sampled = [1, 2, 3, 5]
    for rows in (None, torch.tensor(sampled)):
        probs = target_probs(logits, batch_of(MIXED), rows)
        assert len(probs) == (len(MIXED) if rows is None else len(sampled))
        for place, index in enumerate(range(len(MIXED)) if rows is None else sampled):
            if MIXED[index].temperature == 0:
                wanted = torch.nn.functional.one_hot(logits[index].argmax(-1), VOCAB).double()
            else:
                wanted = warped(logits[index], MIXED[index])
            torch.testing.assert_close(probs[place].double(), wanted, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_taken_as_they_are(dtype):
    """Ties are common there, and the first of equals wins, as in plain decoding."""
    logits = torch.randint(-2, 3, (8, 5, 600), generator=torch.Generator().manual_seed(0)).to(dtype)
    tokens = torch.cat([torch.ones(8, 1).long(), logits.argmax(-1)[:, :-1]], 1)
    tokens[:4, 3] += 1
    proposal = Proposal(chain(tokens, torch.full((8,), 5)))
    verdict = SamplingVerifier().verify(proposal, logits, batch_of([SamplingParams()] * 8))
    assert verdict.accepted.tolist() == [2] * 4 + [4] * 4
    assert torch.equal(verdict.tokens[4:], logits.argmax(-1)[4:])
