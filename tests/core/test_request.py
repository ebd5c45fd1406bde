"""A request ends exactly where it should, wherever in a block that is."""

import pytest
import torch

from dflash_core.errors import RequestError
from dflash_core.generation import as_tuple, stop_sequences, token_lists
from dflash_core.request import Request, cut_at_stop, end_of
from dflash_core.sampling import SamplingParams


def request(**options):
    return Request(prompt=(1, 2), max_new_tokens=options.pop("max_new_tokens", 100), **options)


def detokenize(tokens):
    return "".join(chr(token) for token in tokens)


def test_runs_on_without_a_reason_to_end():
    assert end_of(request(), [3], [4, 5], None) == (2, None)


@pytest.mark.parametrize(("block", "kept"), [([9, 4, 5], 1), ([4, 9, 5], 2), ([4, 5, 9], 3)])
def test_an_end_token_counts_and_nothing_behind_it(block, kept):
    assert end_of(request(eos_token_ids=(9, 10)), [3], block, None) == (kept, "stop")


def test_the_limit_cuts_a_block():
    assert end_of(request(max_new_tokens=4), [3, 3], [4, 5, 6], None) == (2, "length")
    assert end_of(request(max_new_tokens=4), [3, 3], [4], None) == (1, None)


def test_an_end_token_behind_the_limit_is_not_seen():
    assert end_of(request(max_new_tokens=3, eos_token_ids=(9,)), [3], [4, 5, 9], None) == (2, "length")


def test_a_stop_string_may_begin_in_an_earlier_cycle():
    stop = request(stop=("END",))
    assert end_of(stop, [ord("E"), ord("N")], [ord("D"), ord("x")], detokenize) == (1, "stop")
    assert end_of(stop, [ord("E")], [ord("N"), ord("x")], detokenize) == (2, None)


def test_a_stop_of_tokens_needs_no_tokenizer():
    assert end_of(request(stop=((7, 8),)), [7], [8, 9], None) == (1, "stop")


def test_a_stop_string_without_a_tokenizer_is_an_error():
    with pytest.raises(RequestError, match="tokenizer"):
        end_of(request(stop=("x",)), [], [1], None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": ()}, "no tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"block_size": 0}, "block_size is 0"),
        ({"verify_length": 0}, "verify_length is 0"),
        ({"verify_length": "all"}, "'all'"),
        ({"tree_budget": 0}, "tree_budget is 0"),
        ({"stop": ("",)}, "stop sequence is empty"),
    ],
)
def test_nonsense_is_refused_in_words(options, words):
    with pytest.raises(RequestError, match=words):
        Request(**{"prompt": (1,), "max_new_tokens": 5, **options})


def test_text_is_cut_at_the_first_stop():
    assert cut_at_stop("one two three", ["three", "two", (5,)]) == "one "
    assert cut_at_stop("one", ["two"]) == "one"


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": 2.5},
        {"max_new_tokens": "x"},
        {"block_size": 2.5},
        {"block_size": "x"},
        {"verify_length": None},
        {"verify_length": 2.5},
        {"verify_length": [2]},
        {"tree_budget": 2.5},
        {"tree_budget": float("nan")},
        {"tree_budget": True},
        {"tree_budget": [4]},
        {"tree_budget": 10**30},
        {"tree_budget": "x"},
    ],
    ids=str,
)
def test_a_setting_of_another_type_is_refused_by_name(wrong):
    (name,) = wrong
    with pytest.raises(RequestError, match=name):
        Request(**{"prompt": (1, 2), "max_new_tokens": 4, **wrong})


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p", "seed"])
@pytest.mark.parametrize("wrong", ["x", None, [1], True, 10**30])
def test_sampling_settings_of_another_type_are_refused_by_name(name, wrong):
    if name == "temperature" and wrong == 10**30:
        return  # hot, but a temperature
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: wrong})


@pytest.mark.parametrize("wrong", [None, 5, "text", torch.tensor(3), [[1], 2], [[True]], [1.5], []], ids=str)
def test_prompts_that_are_no_token_ids_are_refused(wrong):
    with pytest.raises(RequestError, match="input_ids"):
        token_lists(wrong)


def test_ends_and_stops_of_another_type_are_refused():
    for wrong in ("x", [None], 2.5):
        with pytest.raises(RequestError, match="eos_token_id"):
            as_tuple(wrong)
    assert as_tuple(torch.tensor(5)) == (5,)
    for wrong in (5, [None]):
        with pytest.raises(RequestError, match="stop"):
            stop_sequences(wrong)
