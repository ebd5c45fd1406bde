"""On the real pair: whatever is drafted and whoever shares the batch, greedy output is plain decoding's."""

import os

import pytest
from real_pair import benchmark_prompts, real_draft, real_target

from dflash_core.generation import build_decoder
from dflash_core.request import Request

pytestmark = pytest.mark.slow

PROMPTS_A_SET = int(os.environ.get("DFLASH_TEST_PROMPTS", "2"))
"""`make test-long` takes 10."""

LIMITS = (16, 6, 12, 9, 14)
"""New tokens of prompts 0, 1, 2, ..., over and over: requests of one batch leave at different times."""

BLOCK_SIZES = (2, 4, 8, 16)
TREE_BUDGETS = {"chain": None, "tree of 16": 16, "tree of 64": 64}
BATCHES = (1, 3, 8)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Replaces the folder's fixture: a real model keeps all cores busy."""


@pytest.fixture(scope="module")
def requests():
    """Prompts and their limits."""
    return [
        (tuple(prompt), LIMITS[index % len(LIMITS)])
        for index, prompt in enumerate(benchmark_prompts(PROMPTS_A_SET))
    ]


@pytest.fixture(scope="module")
def answers(requests):
    """What plain decoding gives, each prompt by itself."""
    tokens, _ = decode(None, requests, max_batch=1)
    return tokens


def decode(draft, requests, max_batch, **options):
    """Tokens of each request, and the counters of the run."""
    decoder = build_decoder(real_target(), draft, schedule="fixed", max_batch=max_batch)
    for prompt, limit in requests:
        decoder.add(Request(prompt, limit, verify_length="block", **options))
    tokens = [[] for _ in requests]
    while not decoder.idle:
        for delta in decoder.step():
            tokens[delta.id] += delta.tokens
    return tokens, decoder.stats


def difference(request, answer, tokens):
    """The first token that differs, and how nearly the target was undecided there.

    A gap above 1e-4 is a bug. One below may be rounding: a forward over other rows adds in another order.
    """
    prompt, _ = request
    at = next(i for i, (ours, its) in enumerate(zip(tokens, answer, strict=True)) if ours != its)
    best = real_target().start().prefill([*prompt, *answer[:at]]).logits[0, 0].topk(2)
    gap = float(best.values[0] - best.values[1])
    return f"token {at} is {tokens[at]}, not {answer[at]}; best {best.indices.tolist()}, {gap:.2g} apart"


@pytest.mark.parametrize("max_batch", BATCHES)
@pytest.mark.parametrize("tree_budget", TREE_BUDGETS.values(), ids=TREE_BUDGETS)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_greedy_output_is_that_of_plain_decoding(requests, answers, block_size, tree_budget, max_batch):
    tokens, stats = decode(real_draft(), requests, max_batch, block_size=block_size, tree_budget=tree_budget)
    assert [len(found) for found in tokens] == [limit for _, limit in requests]
    wrong = {
        index: difference(request, answer, found)
        for index, (request, answer, found) in enumerate(zip(requests, answers, tokens, strict=True))
        if found != answer
    }
    assert not wrong
    assert stats.acceptance_length > 1.3  # a draft that is never right would leave nothing to be tested
