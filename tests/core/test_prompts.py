"""The benchmark sets are found, and always yield the same questions."""

import pytest

from dflash_core.bench.prompts import SETS, load_prompts
from dflash_core.errors import SettingsError

SIZES = {"humaneval": 164, "gsm8k": 100, "mtbench": 80}


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_complete_and_its_questions_differ(name):
    questions = [messages[0]["content"] for messages in load_prompts(name)]
    assert len(questions) == len(set(questions)) == SIZES[name]
    assert all(len(question) > 10 for question in questions)


def test_a_few_are_spread_over_the_set():
    few, all_of_them = load_prompts("gsm8k", 10), load_prompts("gsm8k")
    assert [all_of_them.index(one) for one in few] == list(range(0, 100, 10))


def test_an_unknown_set_is_named_with_those_there_are():
    with pytest.raises(SettingsError, match=r"'gsm9k'.*humaneval, gsm8k, mtbench"):
        load_prompts("gsm9k")
