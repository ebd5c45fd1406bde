"""Logits processors see every node's own prefix: speculation is plain decoding under them, too."""

from itertools import pairwise

import pytest
import torch
from markov import ANCHOR_POSITION, Markov, markov_pair
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from dflash_core.errors import RequestError
from dflash_core.processors import apply_processors
from dflash_core.proposal import Proposal
from dflash_core.sampling import SamplingParams, sampling_batch
from dflash_core.tree import best_first, chain, from_parents
from dflash_core.verify.sampling import SamplingVerifier

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5]


def even_after_odd(_, ids):
    """A grammar: what follows has the other parity; a prefix that breaks it has no continuation."""
    tokens = ids.tolist()
    if any(a % 2 == b % 2 for a, b in pairwise(tokens[5:])):
        return []
    return [token for token in range(VOCAB) if token % 2 != tokens[-1] % 2]


def hugging_face():
    return {
        "repetition penalty": [RepetitionPenaltyLogitsProcessor(1.7)],
        "no repeated bigram": [NoRepeatNGramLogitsProcessor(2)],
        "bad words": [NoBadWordsLogitsProcessor([[7], [1, 2], [4, 1, 5]], eos_token_id=0)],
        "minimum length": [MinNewTokensLengthLogitsProcessor(len(PROMPT), 6, eos_token_id=[0, 2])],
        "sequence bias": [SequenceBiasLogitsProcessor({(6,): 3.0, (1, 3): -9.0, (5, 6, 8): 9.0})],
        "prefix constraint": [PrefixConstrainedLogitsProcessor(even_after_odd, num_beams=1)],
        "several in order": [
            RepetitionPenaltyLogitsProcessor(1.3),
            NoRepeatNGramLogitsProcessor(2),
            PrefixConstrainedLogitsProcessor(even_after_odd, num_beams=1),
        ],
        "a list": [LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.3)])],
        "a function": [lambda ids, scores: scores - 2.0 * torch.nn.functional.one_hot(ids[:, -1], VOCAB)],
    }


CHAIN = chain(torch.tensor([[5, 6, 1, 4, 1, 5]] * 2), torch.tensor([6, 3]))
TREE = from_parents(
    torch.tensor([[5, 6, 1, 1, 8, 3, 2, 4, 0]] * 2),
    torch.tensor([[-1, 0, 0, 1, 1, 2, 3, 3, 5]] * 2),
    torch.tensor([9, 5]),
    max_depth=3,
)


def path(tree, row, node):
    """Tokens from the root's child to the node."""
    return tree.tokens[row][tree.visible[row, node]].tolist()[1:]


def reachable(tree, row, node, processed):
    nodes = tree.visible[row, node].nonzero()[:, 0].tolist()
    return all(
        processed[row, above, tree.tokens[row, below]] > float("-inf") for above, below in pairwise(nodes)
    )


@pytest.mark.parametrize("name", hugging_face())
@pytest.mark.parametrize("tree", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_node_gets_what_plain_decoding_gets(tree, name, dtype):
    processors = hugging_face()[name]
    logits = torch.randn(*tree.tokens.shape, VOCAB, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = logits.clone()
    processed = apply_processors(tree, logits, [PROMPT, PROMPT], [processors, processors])
    assert torch.equal(logits, before)
    changed = 0
    for row in range(2):
        for node in range(tree.width):
            scores = logits[row, node][None].float()
            if node < int(tree.num_nodes[row]) and reachable(tree, row, node, processed):
                ids = torch.tensor([[*PROMPT, *path(tree, row, node)]])
                for processor in processors:
                    scores = processor(ids, scores.clone())
                changed += 1
            assert torch.equal(processed[row, node], scores[0]), (row, node)
    assert changed >= 4
    assert processed.dtype == torch.float32


def test_requests_without_processors_cost_nothing():
    logits = torch.randn(2, 6, VOCAB)
    assert apply_processors(CHAIN, logits, [[], []], [None, ()]) is logits


def test_other_requests_are_untouched():
    logits = torch.randn(2, 6, VOCAB)
    processed = apply_processors(CHAIN, logits, [PROMPT, ()], [[RepetitionPenaltyLogitsProcessor(2.0)], None])
    assert torch.equal(processed[1], logits[1])
    assert not torch.equal(processed[0], logits[0])


def test_nodes_of_one_depth_go_in_one_call_and_only_once():
    calls = []

    def watch(ids, scores):
        calls.append(tuple(ids.shape))
        return scores

    logits = torch.randn(2, 9, VOCAB)
    apply_processors(TREE, logits, [PROMPT, ()], [[watch], None])
    assert calls == [(1, 5), (2, 6), (3, 7), (3, 8)]


def test_no_processor_is_asked_about_a_prefix_that_it_has_excluded():
    """A grammar may have no answer to a prefix that plain decoding cannot reach."""
    asked = []

    def only_6_then_1(ids, scores):
        new = ids[:, len(PROMPT) :].tolist()
        asked.extend(tuple(row) for row in new)
        scores = torch.full_like(scores, float("-inf"))
        for row, tokens in enumerate(new):
            scores[row, {(): 6, (6,): 1, (6, 1): 2, (6, 1, 2): 9}[tuple(tokens)]] = 0.0
        return scores

    apply_processors(TREE, torch.randn(2, 9, VOCAB), [PROMPT, ()], [[only_6_then_1], None])
    assert asked == [(), (6,), (6, 1), (6, 1, 2)]


def test_a_processor_may_write_to_its_scores():
    def in_place(ids, scores):
        scores[:, 3] = 7.0
        return scores

    logits = torch.randn(2, 6, VOCAB)
    before = logits.clone()
    processed = apply_processors(CHAIN, logits, [PROMPT, ()], [[in_place], None])
    assert torch.equal(logits, before)
    assert bool((processed[0, :, 3] == 7).all())


def boom(ids, scores):
    raise KeyError("no such state")


class Narrow:
    def __call__(self, ids, scores):
        return scores[:, :-1]


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (boom, r"^The logits processor boom raised KeyError: 'no such state'$"),
        (Narrow(), r"^The logits processor Narrow returned \(1, 11\); .* shape \(1, 12\)"),
        (
            lambda ids, scores: None,
            r"^The logits processor <lambda> returned NoneType; it must return scores",
        ),
        (lambda ids, scores: scores.numpy(), r"returned ndarray"),
        (
            lambda ids, scores: scores - float("inf"),
            r"left a row whose best score is -inf; at least one token",
        ),
        (lambda ids, scores: scores * float("nan"), r"left a row whose best score is nan"),
    ],
)
def test_a_broken_processor_is_named(processor, message):
    with pytest.raises(RequestError, match=message):
        apply_processors(CHAIN, torch.randn(2, 6, VOCAB), [PROMPT, PROMPT], [None, [processor]])


def generate(target: Markov, draft: Markov, params, processors, budget, length=24):
    """One request, drafted by best-first trees (`budget` 0: plain decoding)."""
    committed = list(PROMPT)
    while len(committed) < len(PROMPT) + length:
        offset = len(committed) - len(PROMPT) + ANCHOR_POSITION
        anchor = torch.tensor([committed[-1]])
        levels, token = [], anchor
        for level in range(3):
            levels.append(draft.logits(token, torch.tensor([offset + level])).log_softmax(-1).topk(4, -1))
            token = levels[-1].indices[:, 0]
        log_probs, ids = (
            torch.stack([getattr(x, name) for x in levels], 1) for name in ("values", "indices")
        )
        tree, _ = best_first(anchor, log_probs, ids, torch.tensor([budget]), budget)
        logits = target.logits(tree.tokens, offset + tree.depths)
        logits = apply_processors(tree, logits, [committed], [processors])
        verdict = SamplingVerifier().verify(Proposal(tree), logits, sampling_batch([params], [offset]))
        committed += verdict.tokens[0, : int(verdict.accepted) + 1].tolist()
    return committed[: len(PROMPT) + length]


@pytest.mark.parametrize("name", hugging_face())
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0, top_k=6, seed=4)])
def test_output_under_processors_is_that_of_plain_decoding(name, params):
    target, draft = markov_pair(VOCAB, seed=8)
    wanted = generate(target, draft, params, hugging_face()[name], budget=0)
    assert generate(target, draft, params, hugging_face()[name], budget=10) == wanted
    assert generate(target, draft, params, hugging_face()[name], budget=1) == wanted
    assert wanted != generate(target, draft, params, (), budget=0)
