"""One ragged forward over a batch gives each node what a plain forward over its own path gives it."""

import pytest
import torch
from tiny_targets import (
    ATTENDING,
    CONFIGS,
    RECURRENT,
    WITHOUT_SDPA,
    assert_near,
    path,
    plain_forward,
    prompts,
    random_chain,
    tiny_target,
    tree_of,
)

from dflash_core.rollback.base import RollbackPlan

LENGTHS = (11, 3, 8)
TREE = tree_of(
    [[-1, 0, 0, 2, 2, 3, 5], [-1, 0, 0, 0, -1, -1, -1], [-1, 0, 1, 2, 3, 4, 5]], num_nodes=(7, 4, 7), seed=1
)
ATTENTION = [(name, "eager") for name in ATTENDING] + [
    (name, "sdpa") for name in CONFIGS if name not in WITHOUT_SDPA
]


def _filled(target, taps, lengths=LENGTHS):
    state, texts = target.start(taps), prompts(*lengths)
    outputs = [state.prefill(text) for text in texts]
    return state, texts, outputs


def _check_nodes(target, tree, texts, output, taps):
    """Compare every node with the plain forward over a branch that it is on."""
    for row, text in enumerate(texts):
        nodes = set(range(int(tree.num_nodes[row])))
        for leaf in nodes - set(tree.parents[row].tolist()):
            branch = path(tree, row, leaf)
            logits, blocks = plain_forward(target, text + tree.tokens[row, branch].tolist())
            assert_near(output.logits[row, branch], logits[len(text) :])
            assert_near(output.taps[row, branch], torch.cat([blocks[tap, len(text) :] for tap in taps], -1))
            nodes -= set(branch)
        assert not nodes


@pytest.mark.parametrize(("name", "attention"), ATTENTION)
def test_prefill_is_the_plain_forward(name, attention):
    target = tiny_target(name, attention)
    _, texts, outputs = _filled(target, (2, 0))
    for text, output in zip(texts, outputs, strict=True):
        logits, blocks = plain_forward(target, text)
        assert output.logits.shape == (1, 1, logits.shape[-1])
        assert_near(output.logits[0, 0], logits[-1])
        assert_near(output.taps[0], torch.cat([blocks[2], blocks[0]], -1))


@pytest.mark.parametrize(("name", "attention"), ATTENTION)
def test_every_node_of_a_ragged_chain_sees_its_own_row(name, attention):
    target = tiny_target(name, attention)
    state, texts, _ = _filled(target, (0, 2))
    tree = random_chain((5, 2, 4))
    _check_nodes(target, tree, texts, state.verify(tree), (0, 2))


@pytest.mark.parametrize(("name", "attention"), [pair for pair in ATTENTION if pair[0] in ATTENDING])
def test_every_node_of_a_ragged_tree_sees_its_ancestors_only(name, attention):
    target = tiny_target(name, attention)
    state, texts, _ = _filled(target, (1,))
    _check_nodes(target, TREE, texts, state.verify(TREE), (1,))


@pytest.mark.parametrize("name", ATTENDING)
def test_after_a_commit_the_accepted_nodes_are_the_context(name):
    """Also the rejected ones must not be: their slots are overwritten or hidden."""
    target = tiny_target(name)
    state, texts, _ = _filled(target, (0,))
    accepted = [[0, 2, 4], [0], [0, 1, 2, 3]]
    state.verify(TREE)
    state.commit(
        RollbackPlan(
            keep=[len(nodes) for nodes in accepted],
            gather=torch.tensor([nodes + [-1] * (4 - len(nodes)) for nodes in accepted]),
        )
    )
    assert list(state.lengths) == [14, 4, 12]
    texts = [
        text + TREE.tokens[row, nodes].tolist()
        for row, (text, nodes) in enumerate(zip(texts, accepted, strict=True))
    ]
    again = random_chain((3, 5, 1), seed=5)
    _check_nodes(target, again, texts, state.verify(again), (0,))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_verify_that_is_not_committed_never_happened(name):
    target = tiny_target(name)
    state, texts, _ = _filled(target, (0,))
    for nodes in ((7, 3, 7), (1, 1, 1)):
        state.verify(random_chain(nodes))
        tree = random_chain((4, 4, 4), seed=9)
        _check_nodes(target, tree, texts, state.verify(tree), (0,))


@pytest.mark.parametrize("name", CONFIGS)
def test_one_token_after_the_other_is_the_plain_forward(name):
    """Also past a sliding window, where even a lone node needs a mask."""
    target = tiny_target(name)
    state, (text,), _ = _filled(target, (0,), lengths=(2,))
    for cycle in range(5):
        tree = random_chain((1,), seed=cycle)
        _check_nodes(target, tree, [text], state.verify(tree), (0,))
        state.commit(RollbackPlan([1]))
        text = text + tree.tokens[0].tolist()


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_leave_and_join_without_a_trace(name):
    target = tiny_target(name)
    state, texts, _ = _filled(target, (0,), lengths=(11, 3, 8, 5))
    state.keep([3, 1])
    late = prompts(6, seed=40)[0]
    state.prefill(late)
    assert list(state.lengths) == [5, 3, 6]
    tree = random_chain((2, 4, 3), seed=7)
    _check_nodes(target, tree, [texts[3], texts[1], late], state.verify(tree), (0,))
    state.keep([])
    assert list(state.lengths) == []
    assert_near(state.prefill(texts[0]).logits[0, 0], plain_forward(target, texts[0])[0][-1])


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss", *RECURRENT])
def test_a_long_prompt_may_be_run_in_chunks(name, monkeypatch):
    monkeypatch.setattr("dflash_backends.transformers.state.PREFILL_CHUNK", 8)
    target = tiny_target(name)
    state, (text,), (output,) = _filled(target, (1, 2), lengths=(27,))
    logits, blocks = plain_forward(target, text)
    assert_near(output.logits[0, 0], logits[-1])
    assert_near(output.taps[0], torch.cat([blocks[1], blocks[2]], -1))
    tree = random_chain((3,))
    _check_nodes(target, tree, [text], state.verify(tree), (1, 2))


def test_the_cache_grows_without_losing_anything(monkeypatch):
    monkeypatch.setattr("dflash_backends.transformers.rows.FIRST_CAPACITY", 4)
    target = tiny_target("llama")
    state, texts, _ = _filled(target, (0,))
    for cycle in range(6):
        tree = random_chain((4, 4, 4), seed=cycle)
        output = state.verify(tree)
        _check_nodes(target, tree, texts, output, (0,))
        keep = [(cycle + row) % 4 + 1 for row in range(3)]
        state.commit(RollbackPlan(keep))
        texts = [text + tree.tokens[row, : keep[row]].tolist() for row, text in enumerate(texts)]


def test_the_last_block_is_tapped_before_the_final_norm():
    target = tiny_target("llama")
    state = target.start((3,))
    text = prompts(6)[0]
    tap = state.prefill(text).taps[0]
    with torch.no_grad():
        normed = target.model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0]
        assert_near(target.model.model.norm(tap), normed)
        assert not torch.allclose(tap, normed, atol=1e-2)


def test_no_taps_cost_no_hooks():
    target = tiny_target("llama")
    state = target.start(())
    assert state.prefill([1, 2, 3]).taps is None
    assert state.verify(random_chain((2,))).taps is None
    target.start((0, 1)).prefill([1, 2, 3])
    assert not any(layer._forward_hooks for layer in target.model.model.layers)


def test_a_state_goes_on_in_and_out_of_inference_mode():
    target = tiny_target("qwen3")
    state, texts = target.start((0,)), prompts(5, 3)
    with torch.inference_mode():
        state.prefill(texts[0])
    state.prefill(texts[1])
    tree = random_chain((3, 2))
    _check_nodes(target, tree, texts, state.verify(tree), (0,))
    with torch.inference_mode():
        _check_nodes(target, tree, texts, state.verify(tree), (0,))
