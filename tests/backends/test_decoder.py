"""Whatever is drafted, verified, rolled back or scheduled: what comes out is the target's own."""

import pytest
import torch
from prophet import Prophet
from tiny_drafts import tiny_draft
from tiny_targets import ATTENDING, RECURRENT, VOCABULARY, prompts, tiny_target

from dflash_core.errors import RequestError, UnsupportedError
from dflash_core.generation import build_decoder, generate
from dflash_core.request import Request
from dflash_core.sampling import SamplingParams

NEW = 24
PROMPTS = prompts(11, 3, 8, 5, 1)
KINDS = {"v1": {}, "v2": {"second": True}, "spark": {"spark": True}}
SAMPLING = {
    "v2": {"second": True},
    "spark": {"spark": True},
    "v1 sampled": {"options": {"proposal": "sample"}},
}
"""Drafts whose chains are samples."""


def plainly(target, texts=PROMPTS, **options):
    """Each prompt by itself, token by token."""
    return [generate(target, None, text, max_new_tokens=NEW, **options).tokens[0] for text in texts]


def prophet(target, **options):
    answers = dict(zip(map(tuple, PROMPTS), plainly(target, eos_token_id=[]), strict=True))
    return Prophet(answers, VOCABULARY, **options)


@pytest.fixture(scope="module")
def llama():
    return tiny_target("llama")


@pytest.fixture(scope="module")
def answers(llama):
    return plainly(llama, eos_token_id=[])


@pytest.mark.parametrize("name", ATTENDING)
@pytest.mark.parametrize("tree_budget", [None, 4, 16])
def test_greedy_is_the_targets_own_on_every_architecture(name, tree_budget):
    target = tiny_target(name)
    draft = prophet(target)
    result = generate(
        target, draft, PROMPTS, max_new_tokens=NEW, eos_token_id=[], tree_budget=tree_budget, max_batch=3
    )
    assert result.tokens == list(draft.answers.values())


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("rollback", ["replay", "checkpoint"])
def test_greedy_is_the_targets_own_with_recurrent_layers(name, rollback):
    target = tiny_target(name)
    draft = prophet(target)
    result = generate(
        target,
        draft,
        PROMPTS,
        max_new_tokens=NEW,
        eos_token_id=[],
        rollback=rollback,
        verify_length="block",
        max_batch=3,
    )
    assert result.tokens == list(draft.answers.values())
    assert result.stats.rollback_count > 10


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("block_size", [2, 3, 8, 16])
@pytest.mark.parametrize("tree_budget", [None, 7, 40])
def test_greedy_with_a_network_that_guesses_badly(llama, answers, kind, block_size, tree_budget):
    result = generate(
        llama,
        tiny_draft(llama, **kind),
        PROMPTS,
        max_new_tokens=NEW,
        eos_token_id=[],
        block_size=block_size,
        tree_budget=tree_budget,
        verify_length="block",
        max_batch=4,
    )
    assert result.tokens == answers


def test_a_tree_accepts_more_than_a_chain(llama):
    draft = prophet(llama)
    chain, tree = (
        generate(
            llama,
            draft,
            PROMPTS,
            max_new_tokens=NEW,
            eos_token_id=[],
            verify_length="block",
            tree_budget=budget,
        )
        for budget in (None, 24)
    )
    assert tree.stats.acceptance_length > chain.stats.acceptance_length + 0.5
    assert chain.stats.acceptance_length > 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_schedule_chooses_trees_where_nobody_says_otherwise(llama, temperature):
    """And the tokens stay those of plain decoding."""
    draft = prophet(llama)
    draft.branches = lambda sampling: True
    options = {"max_new_tokens": NEW, "eos_token_id": [], "temperature": temperature, "seed": 5}
    result = generate(llama, draft, PROMPTS, max_batch=3, **options)
    assert result.tokens == generate(llama, None, PROMPTS, **options).tokens
    assert result.stats.cycles_drafted > 0
    chains = generate(llama, draft, PROMPTS, max_batch=3, tree_budget=None, **options)
    assert chains.tokens == result.tokens


@pytest.mark.parametrize("rollback", ["gather", "replay", "checkpoint"])
def test_no_tree_is_chosen_that_the_rollback_cannot_follow(llama, answers, rollback):
    options = {"max_new_tokens": NEW, "eos_token_id": [], "rollback": rollback, "max_batch": 3}
    assert generate(llama, tiny_draft(llama), PROMPTS, **options).tokens == answers


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_drafts_and_trees_may_share_a_batch_with_plain_requests(llama, answers, kind):
    decoder = build_decoder(llama, tiny_draft(llama, **kind), schedule="fixed", max_batch=5)
    kinds = [
        {},
        {"tree_budget": 9},
        {"block_size": 1},
        {"verify_length": 2},
        {"tree_budget": 3, "block_size": 3},
    ]
    for text, asked in zip(PROMPTS, kinds, strict=True):
        decoder.add(Request(tuple(text), NEW, **asked))
    assert run(decoder) == dict(enumerate(answers))


def run(decoder, tokens=None):
    tokens = {} if tokens is None else tokens
    while not decoder.idle:
        for delta in decoder.step():
            tokens.setdefault(delta.id, []).extend(delta.tokens)
    return tokens


def test_requests_join_and_leave_between_cycles(llama, answers):
    decoder = build_decoder(llama, prophet(llama), max_batch=2)
    tokens, waiting = {}, list(enumerate(PROMPTS))
    while waiting or not decoder.idle:
        if waiting:
            index, text = waiting.pop(0)
            assert decoder.add(Request(tuple(text), NEW - 3 * index)) == index
        for delta in decoder.step():
            tokens.setdefault(delta.id, []).extend(delta.tokens)
    assert tokens == {index: answer[: NEW - 3 * index] for index, answer in enumerate(answers)}


def test_a_cancelled_request_leaves_the_others_alone(llama, answers):
    decoder = build_decoder(llama, tiny_draft(llama), max_batch=3)
    for text in PROMPTS:
        decoder.add(Request(tuple(text), NEW))
    tokens = {}
    for _ in range(3):
        for delta in decoder.step():
            tokens.setdefault(delta.id, []).extend(delta.tokens)
    assert decoder.cancel(0)
    assert decoder.cancel(4)
    assert not decoder.cancel(17)
    run(decoder, tokens)
    assert [tokens[index] for index in (1, 2, 3)] == answers[1:4]
    assert 4 not in tokens
    assert tokens[0] == answers[0][: len(tokens[0])]
    assert [r.finish_reason for r in decoder.stats.requests] == ["cancelled", *["length"] * 3, "cancelled"]


@pytest.mark.parametrize("tree_budget", [None, 12])
def test_an_end_token_inside_a_block_ends_the_request_there(llama, answers, tree_budget):
    draft = prophet(llama, error=0.1)
    for text, answer in zip(PROMPTS, answers, strict=True):
        end = answer[7]
        result = generate(llama, draft, text, max_new_tokens=NEW, eos_token_id=end, tree_budget=tree_budget)
        assert result.tokens[0] == answer[: answer.index(end) + 1]
        assert result.finish_reasons == ["stop"]
        assert sum(result.stats.acceptance_lengths[0]) == len(result.tokens[0]) - 1


@pytest.mark.parametrize("limit", range(1, 9))
def test_the_length_limit_holds_wherever_it_falls(llama, answers, limit):
    result = generate(llama, prophet(llama, error=0.0), PROMPTS, max_new_tokens=limit, eos_token_id=[])
    assert result.tokens == [answer[:limit] for answer in answers]


def test_stop_tokens_end_a_request(llama, answers):
    stop = answers[0][4:6]
    result = generate(llama, prophet(llama), PROMPTS[0], max_new_tokens=NEW, eos_token_id=[], stop=[stop])
    assert result.tokens[0][-2:] == stop
    assert len(result.tokens[0]) <= 6


SAMPLED = {"temperature": 0.9, "eos_token_id": []}


@pytest.mark.parametrize("tree_budget", [None, 12])
@pytest.mark.parametrize("filters", [{}, {"top_k": 9}, {"top_p": 0.8}, {"min_p": 0.1, "top_k": 20}])
def test_sampling_point_masses_gives_the_tokens_of_plain_sampling(llama, tree_budget, filters):
    plain = [
        generate(llama, None, text, max_new_tokens=NEW, seed=7 + index, **SAMPLED, **filters).tokens[0]
        for index, text in enumerate(PROMPTS)
    ]
    drafted = generate(
        llama,
        tiny_draft(llama),
        PROMPTS,
        max_new_tokens=NEW,
        seed=7,
        tree_budget=tree_budget,
        **SAMPLED,
        **filters,
    )
    assert drafted.tokens == plain
    assert len({tuple(tokens) for tokens in plain}) == len(PROMPTS)


@pytest.mark.parametrize("kind", SAMPLING.values(), ids=SAMPLING)
def test_a_sampled_request_does_not_depend_on_its_company(llama, kind):
    draft = tiny_draft(llama, **kind)
    asked = {"max_new_tokens": NEW, "verify_length": "block", **SAMPLED}
    alone = [
        generate(llama, draft, text, seed=40 + index, **asked).tokens[0] for index, text in enumerate(PROMPTS)
    ]
    assert generate(llama, draft, PROMPTS, seed=40, max_batch=3, **asked).tokens == alone


@pytest.mark.parametrize("kind", SAMPLING.values(), ids=SAMPLING)
def test_a_sampled_chain_may_share_a_batch_with_trees(llama, kind):
    draft = tiny_draft(llama, **kind)
    kinds = [{}, {"tree_budget": 9}, {"verify_length": 3}, {"tree_budget": 3}, {"block_size": 1}]

    def requests():
        for index, (text, kind) in enumerate(zip(PROMPTS, kinds, strict=True)):
            yield Request(tuple(text), NEW, sampling=SamplingParams(0.9, seed=index), **kind)

    together = build_decoder(llama, draft, schedule="fixed", max_batch=5)
    alone = {}
    for index, request in enumerate(requests()):
        together.add(request)
        single = build_decoder(llama, draft, schedule="fixed")
        single.add(request)
        alone[index] = run(single)[0]
    assert run(together) == alone


def test_greedy_and_sampled_requests_share_a_batch(llama, answers):
    decoder = build_decoder(llama, tiny_draft(llama, second=True), schedule="fixed", max_batch=5)
    for index, text in enumerate(PROMPTS):
        sampling = SamplingParams(0.9, seed=index) if index % 2 else SamplingParams()
        decoder.add(Request(tuple(text), NEW, sampling=sampling))
    tokens = run(decoder)
    assert [tokens[index] for index in (0, 2, 4)] == [answers[index] for index in (0, 2, 4)]


class NoRepeat:
    """Forbids the last three tokens, as a Hugging Face processor would: by the prefix that it is given."""

    def __call__(self, input_ids, scores):
        return scores.scatter(1, input_ids[:, -3:], float("-inf"))


@pytest.mark.parametrize("tree_budget", [None, 12])
def test_processors_see_each_nodes_own_prefix(llama, tree_budget):
    options = {"max_new_tokens": NEW, "eos_token_id": [], "logits_processor": [NoRepeat()]}
    plain = [generate(llama, None, text, **options).tokens[0] for text in PROMPTS]
    assert plain != plainly(llama, eos_token_id=[])
    answers = dict(zip(map(tuple, PROMPTS), plain, strict=True))
    draft = Prophet(answers, VOCABULARY)
    result = generate(llama, draft, PROMPTS, tree_budget=tree_budget, max_batch=3, **options)
    assert result.tokens == plain
    assert result.stats.acceptance_length > 1.5


def test_arguments_of_transformers_generate_shape_the_logits(llama):
    options = {
        "max_new_tokens": NEW,
        "eos_token_id": [],
        "repetition_penalty": 1.7,
        "no_repeat_ngram_size": 2,
    }
    expected = [
        llama.model.generate(
            torch.tensor([text]),
            attention_mask=torch.ones(1, len(text), dtype=torch.int64),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
            repetition_penalty=1.7,
            no_repeat_ngram_size=2,
        )[0, len(text) :].tolist()
        for text in PROMPTS
    ]
    assert generate(llama, tiny_draft(llama), PROMPTS, **options).tokens == expected


def test_plain_greedy_is_transformers_own(llama, answers):
    expected = [
        llama.model.generate(
            torch.tensor([text]),
            attention_mask=torch.ones(1, len(text), dtype=torch.int64),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
        )[0, len(text) :].tolist()
        for text in PROMPTS
    ]
    assert answers == expected


def test_tokens_are_handed_out_as_they_are_committed(llama, answers):
    seen = {}
    generate(
        llama,
        prophet(llama),
        PROMPTS,
        max_new_tokens=NEW,
        eos_token_id=[],
        on_tokens=lambda delta: seen.setdefault(delta.id, []).append(delta.tokens),
    )
    assert [[t for part in seen[i] for t in part] for i in range(len(PROMPTS))] == answers
    assert max(len(part) for part in seen[0]) > 1


def test_statistics_add_up(llama):
    result = generate(
        llama, prophet(llama), PROMPTS, max_new_tokens=NEW, eos_token_id=[], verify_length="block"
    )
    stats = result.stats
    for request, lengths in zip(stats.requests, stats.acceptance_lengths, strict=True):
        assert sum(lengths) == request.new_tokens - 1 == NEW - 1
        assert request.slot_verified[0] == len(lengths) - request.plain_cycles
        assert sum(request.slot_accepted) == request.accepted
    assert stats.draft_hit_rate <= stats.slot_acceptance[0] <= 1
    assert stats.seconds.decode > 0
    assert stats.cycles <= sum(map(len, stats.acceptance_lengths))


def test_a_prompt_may_come_as_a_tokenizer_returns_it(llama, answers):
    longest = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in PROMPTS])
    mask = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in PROMPTS])
    options = {"max_new_tokens": NEW, "eos_token_id": []}
    draft = tiny_draft(llama)
    assert generate(llama, draft, {"input_ids": ids, "attention_mask": mask}, **options).tokens == answers
    assert generate(llama, draft, ids, attention_mask=mask, **options).tokens == answers
    assert generate(llama, draft, torch.tensor(PROMPTS[0]), **options).tokens == answers[:1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"input_ids": []}, "token ids"),
        ({"input_ids": [[]]}, "no tokens"),
        ({"input_ids": [["a"]]}, "token ids"),
        ({"input_ids": [[VOCABULARY]]}, "does not know"),
        ({"input_ids": [[-1]]}, "does not know"),
        ({"input_ids": [[1] * 500]}, "512 positions"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": 5, "max_length": 9}, "both given"),
        ({"max_new_tokens": None, "max_length": 3}, "prompt alone has 3"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"do_sample": True, "temperature": 0.0}, "greedy"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"seed": [1, 2]}, "seed has 2 entries"),
        ({"block_size": 0}, "block_size is 0"),
        ({"verify_length": "most"}, "'most'"),
        ({"frequency": 3}, "frequency"),
        ({"stop": "x"}, "tokenizer"),
        ({"max_batch": 0}, "max_batch is 0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_nonsense_is_refused_in_one_sentence(llama, options, words):
    arguments = {"input_ids": [[1, 2, 3]], "max_new_tokens": NEW, **options}
    with pytest.raises(RequestError, match=words):
        generate(llama, tiny_draft(llama), **arguments)


@pytest.mark.parametrize("options", [{"tree_budget": 4}, {"rollback": "crop"}])
def test_what_recurrent_layers_cannot_do_is_refused(options):
    target = tiny_target("qwen3.5")
    with pytest.raises(UnsupportedError, match="recurrent"):
        generate(target, prophet(target), PROMPTS, max_new_tokens=4, **options)
