"""On the real pair: what is sampled through drafts has the target's own distribution.

The real decoder and verifiers run thousands of requests a check; the real model and the real draft compute
each prefix once (`memo_target`, `memo_draft`). A check alarms falsely with probability `ALPHA`, one in a
million. There are 18, so a change of what the fixed seeds give raises a false alarm with a probability
below 2e-5.
"""

import os
from functools import cache

import pytest
import torch
from conditional_check import conditional_p
from distribution_check import ALPHA
from markov import warped
from memo_draft import MemoDrafter
from memo_target import MemoTarget
from real_pair import real_draft, real_target
from tiny_targets import assert_near, plain_forward

from dflash_core.decoder import Decoder
from dflash_core.request import Request
from dflash_core.rollback.crop import CropRollback
from dflash_core.rollback.gather import GatherRollback
from dflash_core.sampling import SamplingParams
from dflash_core.schedule.fixed import FixedSchedule
from dflash_core.verify.choice import target_choice, target_probs
from dflash_core.verify.greedy import follow
from dflash_core.verify.sampling import SamplingVerifier

pytestmark = pytest.mark.slow

QUESTION = "What is your favourite colour?"
"""Several likely tokens at each of the first positions of its answer, and few enough prefixes."""

SAMPLES = int(os.environ.get("DFLASH_TEST_SAMPLES", "2000"))
"""`make test-long` draws 20,000."""

TOKENS = 3
LIMIT = 4
"""One more than is looked at, so that the third token may be the second draft of a cycle."""

MAX_BATCH = 32
QUEUE = 1000
"""Requests queued at a time; to cancel one takes time in proportion."""

SETTINGS = {
    "no filters": {"temperature": 0.6},
    "top-k and top-p": {"temperature": 1.0, "top_k": 20, "top_p": 0.9},
}
WAYS = {
    "chain": ("argmax", None),
    "tree": ("argmax", 6),
    "chain of samples": ("sample", None),
}
"""How drafts are chosen, and the tree's budget."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Replaces the folder's fixture: a real model keeps all cores busy."""


@cache
def memo():
    prompt = real_target().encode_chat([{"role": "user", "content": QUESTION}])
    return MemoTarget(real_target(), prompt, real_draft().taps)


def sample(draft, count, settings, tree_budget=None, verifier=None):
    """The first tokens [count, TOKENS] of requests with seeds 0, 1, 2, ..., and the acceptance length."""
    decoder = Decoder(
        memo(),
        draft and MemoDrafter(draft, memo()),
        verifier=verifier or SamplingVerifier(),
        schedule=FixedSchedule(),
        crop=CropRollback(),
        gather=GatherRollback(),
        max_batch=MAX_BATCH,
    )
    tokens = [[] for _ in range(count)]
    for first in range(0, count, QUEUE):
        for seed in range(first, min(first + QUEUE, count)):
            sampling = SamplingParams(seed=seed, **settings)
            decoder.add(
                Request(
                    memo().prompt, LIMIT, sampling=sampling, verify_length="block", tree_budget=tree_budget
                )
            )
        while not decoder.idle:
            for delta in decoder.step():
                tokens[delta.id] += delta.tokens
                if len(tokens[delta.id]) >= TOKENS and delta.finish_reason is None:
                    decoder.cancel(delta.id)
    return torch.tensor([row[:TOKENS] for row in tokens]), decoder.stats.acceptance_length


def p_values(samples, settings):
    """One a position: the first token, the second given the first, the third given both."""

    def probs_after(context):
        return warped(memo().logits(memo().places([context])), SamplingParams(**settings))[0]

    return [conditional_p(samples[:, : length + 1], probs_after) for length in range(samples.shape[1])]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(("proposal", "tree_budget"), WAYS.values(), ids=WAYS)
def test_the_first_three_tokens_have_the_targets_distribution(
    proposal, tree_budget, settings, record_property
):
    samples, acceptance_length = sample(real_draft(proposal=proposal), SAMPLES, settings, tree_budget)
    found = p_values(samples, settings)
    record_property("p_values", found)
    assert min(found) >= ALPHA, f"p-values of the first, second and third token: {found}"
    assert acceptance_length > 1.2  # otherwise the drafts did not matter
    assert len(samples.unique(dim=0)) > 100  # nor if there were nothing to choose from


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_point_mass_drafts_give_the_very_tokens_of_plain_sampling(settings):
    plain, _ = sample(None, 500, settings)
    for tree_budget in (None, 6):
        drafted, _ = sample(real_draft(proposal="argmax"), 500, settings, tree_budget)
        assert torch.equal(drafted, plain)


class Trusting(SamplingVerifier):
    """Takes every draft that the target finds likely: plausible, and wrong."""

    def verify(self, proposal, logits, sampling):
        tree = proposal.tree
        choice = target_choice(logits, tree.depths, sampling)
        drafts = tree.tokens[:, 1:]
        likely = target_probs(logits, sampling)[:, :-1].gather(-1, drafts[..., None])[..., 0] > 0.3
        choice[:, :-1] = torch.where(likely, drafts, choice[:, :-1])
        return follow(tree, choice)


def test_a_verifier_that_trusts_likely_drafts_is_found_out():
    settings = SETTINGS["no filters"]
    samples, _ = sample(real_draft(), 2000, settings, verifier=Trusting())
    first, second, third = p_values(samples, settings)
    assert first >= ALPHA  # it has no draft
    assert min(second, third) < ALPHA


def test_what_is_remembered_is_what_the_real_model_says():
    first = int(plain_forward(real_target(), memo().prompt)[0][-1].argmax())
    for suffix in [(), (first,), (first, 260), (5, 6, 7)]:
        logits, blocks = plain_forward(real_target(), [*memo().prompt, *suffix])
        places = memo().places([suffix])
        assert_near(memo().logits(places)[0], logits[-1])
        assert_near(memo().node_taps(places)[0], torch.cat([blocks[tap, -1] for tap in real_draft().taps]))
