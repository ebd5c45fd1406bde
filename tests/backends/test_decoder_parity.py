"""Greedy generation equals that of `dflash` 0.1.0, token by token and cycle by cycle, for random drafts."""

from time import perf_counter

import pytest
import torch

pytest.importorskip("dflash", reason="the yardstick is the package dflash==0.1.0")

from dflash.model import dflash_generate
from parity_zlab import TARGET_LAYERS, load_dflash, write_draft
from transformers import LlamaConfig, LlamaForCausalLM

from dflash_backends.transformers.load import from_model
from dflash_core.generation import generate
from dflash_core.loading import load_draft

VOCAB = 17
"""So few tokens that a random draft is right now and then."""
WIDTH = 48
NEW_TOKENS = 40
CASES = [(seed, second) for second in (False, True) for seed in range(14)]


def random_target(seed):
    """A model whose greedy text does not soon fall into a loop."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=TARGET_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def reference(draft, target, prompt, **options):
    return dflash_generate(
        draft,
        target,
        torch.tensor([prompt]),
        NEW_TOKENS,
        options.pop("stop_token_ids", None),
        return_stats=True,
        **options,
    )


@pytest.fixture(autouse=True)
def _runs_without_a_gpu(monkeypatch):
    """The yardstick's clock synchronises a CUDA device even where there is none."""
    monkeypatch.setattr("dflash.model._cuda_time", perf_counter)


@pytest.fixture(scope="module")
def seen_lengths():
    lengths = []
    yield lengths
    assert max(lengths) > 2, "no draft was ever right: the parity above says too little"


@pytest.mark.parametrize(("seed", "second"), CASES, ids=lambda value: str(value))
def test_same_tokens_in_the_same_cycles(tmp_path, seed, second, seen_lengths):
    folder = write_draft(tmp_path / "draft", seed, second=second, width=WIDTH, vocab=VOCAB)
    model = random_target(seed)
    target = from_model(model)
    draft = load_draft(folder, target, allow_rope_mismatch=True)
    yardstick = load_dflash(folder)
    prompt = [(7 * seed + 3 * i) % VOCAB for i in range(5 + 3 * (seed % 6))]
    theirs = reference(yardstick, model, prompt)
    ours = generate(target, draft, prompt, max_new_tokens=NEW_TOKENS, eos_token_id=[], verify_length="block")
    assert ours.tokens[0] == theirs.output_ids[0, len(prompt) :].tolist()
    assert ours.stats.acceptance_lengths[0] == theirs.acceptance_lengths
    seen_lengths += theirs.acceptance_lengths


@pytest.mark.parametrize("block_size", [2, 3, 5, 9])
def test_same_cycles_at_other_block_sizes_and_with_an_end_token(tmp_path, block_size):
    folder = write_draft(tmp_path / "draft", 4, second=False, width=WIDTH, vocab=VOCAB)
    model = random_target(5)
    target = from_model(model)
    prompt = [1, 2, 3, 4]
    yardstick = load_dflash(folder)
    whole = reference(yardstick, model, prompt, block_size=block_size).output_ids[0, len(prompt) :].tolist()
    end = whole[NEW_TOKENS // 2]
    theirs = reference(yardstick, model, prompt, block_size=block_size, stop_token_ids=[end])
    ours = generate(
        target,
        load_draft(folder, target, allow_rope_mismatch=True),
        prompt,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=end,
        block_size=block_size,
        verify_length="block",
    )
    assert ours.tokens[0] == theirs.output_ids[0, len(prompt) :].tolist()
    assert ours.stats.acceptance_lengths[0] == theirs.acceptance_lengths
    assert ours.finish_reasons == ["stop"]
