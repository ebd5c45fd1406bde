"""The model card of a trained draft claims what is known, and no more."""

import pytest
import torch
from drafter_spec import small_spec

from dflash_core.training.batches import Corpus
from dflash_core.training.card import model_card
from dflash_core.training.features import Shard
from dflash_core.training.options import TrainOptions

MADE = {"format": 1, "target": "tiny"}


def card(made, sequences=3, **spec):
    offsets = torch.arange(sequences + 1) * 4
    tokens = torch.zeros(4 * sequences, dtype=torch.int32)
    shard = Shard(tokens, torch.ones(4 * sequences, dtype=torch.bool), offsets, torch.zeros(1))
    return model_card("tiny", small_spec(**spec), Corpus.of([shard]), made, TrainOptions(), [])


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            {"compared": ["gsm8k", "held.jsonl", "humaneval", "mtbench"]},
            ["No question of HumanEval, GSM8K or MT-bench is among the prompts."],
        ),
        (
            {"compared": ["humaneval", "mtbench"]},
            [
                "No question of HumanEval or MT-bench is among the prompts.",
                "Whether questions of GSM8K are among the prompts is not known.",
            ],
        ),
        (
            {"compared": []},
            ["Whether questions of HumanEval, GSM8K or MT-bench are among the prompts is not known."],
        ),
        ({}, ["Whether questions of HumanEval, GSM8K or MT-bench are among the prompts is not known."]),
    ],
    ids=["all", "some", "none", "unrecorded"],
)
def test_the_card_says_which_benchmarks_questions_the_prompts_were_compared_with(made, said):
    text = card({**MADE, **made})
    assert f"held out. {' '.join(said)}\n" in text
    assert text.count("among the prompts") == len(said)
    assert "| format | 1 |\n| target | tiny |\n\n" in text
    assert "held.jsonl" not in text


def test_one_is_not_told_as_several():
    layer = small_spec().layers[0]
    text = card(MADE, sequences=1, layers=(layer,))
    assert "1 layer, taps" in text
    assert "1 answer of the target itself, 4 tokens of them learnt, 1 answer held out." in text
    text = card(MADE, layers=(layer,) * 2)
    assert "2 layers, taps" in text
    assert "3 answers of the target itself, 12 tokens of them learnt, 1 answer held out." in text
