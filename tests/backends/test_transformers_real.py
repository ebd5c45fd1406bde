"""The real SmolLM2 behind our cache, as users get it, against its own plain forward."""

import pytest
import torch
from real_pair import benchmark_prompts, real_target
from tiny_targets import assert_near, path, plain_forward, random_chain, tree_of

from dflash_backends.transformers.demo_model import _gguf_of_package
from dflash_backends.transformers.load import load_target
from dflash_core.rollback.base import RollbackPlan

pytestmark = pytest.mark.slow

TAPS = (1, 7, 14, 20, 26)
TREE = tree_of([[-1, 0, 0, 2, 2], [-1, 0, 0, -1, -1], [-1, 0, 1, 2, 3]], num_nodes=(5, 3, 5))


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Replaces the folder's fixture: a real model keeps all cores busy."""


def _check(target, tree, texts, output):
    for row, text in enumerate(texts):
        for node in range(int(tree.num_nodes[row])):
            branch = tree.tokens[row, path(tree, row, node)].tolist()
            logits, blocks = plain_forward(target, text + branch)
            assert_near(output.logits[row, node], logits[-1])
            assert_near(output.taps[row, node], blocks[list(TAPS), -1].flatten())


def test_ragged_trees_and_the_chains_that_follow_them():
    target = real_target()
    state, texts = target.start(TAPS), benchmark_prompts(1)
    for text in texts:
        output = state.prefill(text)
        logits, blocks = plain_forward(target, text)
        assert_near(output.logits[0, 0], logits[-1])
        assert_near(output.taps[0], torch.cat([blocks[tap] for tap in TAPS], -1))
    _check(target, TREE, texts, state.verify(TREE))
    accepted = torch.tensor([[0, 2, 4], [0, -1, -1], [0, 1, -1]])
    state.commit(RollbackPlan([3, 1, 2], gather=accepted))
    new = [TREE.tokens[row, nodes[nodes >= 0]].tolist() for row, nodes in enumerate(accepted)]
    texts = [text + tokens for text, tokens in zip(texts, new, strict=True)]
    tree = random_chain((3, 4, 1), seed=3)
    _check(target, tree, texts, state.verify(tree))


def test_a_gguf_file_loads_as_its_conversion_does():
    direct = load_target(_gguf_of_package(), fast="off", calibrate=False)
    assert direct.info.eos_token_ids == real_target().info.eos_token_ids == (2,)
    text = "Why is the sky blue?"
    prompt = direct.encode_chat([{"role": "user", "content": text}])
    assert prompt == real_target().encode_chat([{"role": "user", "content": text}])
    assert torch.equal(
        plain_forward(direct, prompt)[0].argmax(-1), plain_forward(real_target(), prompt)[0].argmax(-1)
    )
