"""The fast path of a whole target: equal logits, a cost curve, and one measurement a machine."""

import json

import pytest
import torch
from tiny_targets import WITHOUT_SDPA, assert_near, prompts, random_chain, tiny_target, tree_of

from dflash_backends.transformers import costs
from dflash_backends.transformers.attention import GROUPED
from dflash_core.fastpath import FastLinear, LayoutTable, enable, quiet
from dflash_core.fastpath.choice import ROWS

NAMES = ("llama", "mistral-sliding", "gemma3", "qwen3-moe", "gpt-oss", "qwen3.5")
TREE = tree_of([[-1, 0, 0, 1, 2], [-1, 0, 1, 1, -1], [-1, 0, 0, 0, 3]], num_nodes=(5, 4, 5))


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch, tmp_path):
    """Whatever else runs here, these tests measure, and keep it to themselves."""
    monkeypatch.setattr(quiet, "_switches", lambda: 0)
    monkeypatch.setattr(quiet, "GLANCE", 0.01)
    monkeypatch.setattr(costs, "PASSES", 2)
    monkeypatch.setenv("DFLASH_CACHE_DIR", str(tmp_path))


@pytest.fixture
def column_layout(monkeypatch):
    """Every layer computes in a layout that is not torch's own, whatever is fastest here."""

    def table(weights, narrow):
        shapes = {(weight.shape[0], weight.shape[1]) for weight in weights}
        return LayoutTable(dict.fromkeys(shapes, tuple((rows, "column") for rows in ROWS)), {1: 1.0})

    monkeypatch.setattr(enable, "calibrate_layouts", table)


@pytest.mark.parametrize("name", NAMES)
def test_the_fast_path_gives_the_same_logits_and_taps(name, column_layout):
    plain, fast = tiny_target(name), tiny_target(name, fast="auto")
    assert fast.fast.layers > 0
    assert any(isinstance(module, FastLinear) for module in fast.model.modules())
    assert (fast.model.config._attn_implementation == GROUPED) == (name not in WITHOUT_SDPA)
    assert not any(isinstance(module, FastLinear) for module in plain.model.modules())
    states = [target.start((0, 2)) for target in (plain, fast)]
    trees = (random_chain((4, 2, 3)), TREE) if plain.info.trees else (random_chain((4, 2, 3)),)
    for text in prompts(9, 2, 6):
        ours, theirs = (state.prefill(text) for state in reversed(states))
        assert_near(ours.logits, theirs.logits, 1e-5)
    for tree in trees:
        ours, theirs = (state.verify(tree) for state in reversed(states))
        real = torch.arange(tree.width) < tree.num_nodes[:, None]
        assert_near(ours.logits[real], theirs.logits[real], 1e-5)
        assert_near(ours.taps[real], theirs.taps[real], 1e-5)


def test_the_model_still_generates_by_itself(column_layout):
    """What was done to it for us must not change what anyone else does with it."""
    plain, fast = tiny_target("llama"), tiny_target("llama", fast="auto")
    batch = torch.tensor([[0, 0, 5, 6, 7], [3, 4, 5, 6, 7]])
    mask = (batch > 0).long()
    for target in (plain, fast):
        target.model.generation_config.eos_token_id = None
    ours, theirs = (
        target.model.generate(batch, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
        for target in (fast, plain)
    )
    assert torch.equal(ours, theirs)


def test_what_a_forward_costs_is_known_after_calibration_only():
    target = tiny_target("llama")
    assert target.forward_seconds(1) is None
    target.calibrate()
    curve = [target.forward_seconds(rows) for rows in range(1, 300)]
    assert curve[0] > 0
    assert curve == sorted(curve)


def test_costs_are_measured_once_a_machine_and_model(monkeypatch, tmp_path):
    tiny_target("llama", calibrate=True)
    monkeypatch.setattr(costs, "measure", lambda parts: pytest.fail("measured again"))
    again = tiny_target("llama", calibrate=True)
    assert again.forward_seconds(4) > 0
    (kept,) = (tmp_path / "calibration").glob("forward-*.json")
    record = json.loads(kept.read_text())
    kept.write_text(json.dumps({**record, "value": {"1": "soon"}}))
    monkeypatch.setattr(costs, "measure", lambda parts: {1: 0.5, 2: 0.75})
    assert tiny_target("llama", calibrate=True).forward_seconds(3) == pytest.approx(1.0)
    assert tiny_target("qwen3", calibrate=True).forward_seconds(2) == 0.75  # another model, another curve


def test_a_busy_machine_leaves_costs_unknown(monkeypatch, tmp_path, caplog):
    switches = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr(quiet, "_switches", lambda: next(switches))
    assert tiny_target("llama", calibrate=True).forward_seconds(1) is None
    assert "too busy to measure a forward" in caplog.text
    assert not list(tmp_path.rglob("*.json"))


def test_measuring_leaves_no_hooks():
    target = tiny_target("llama", calibrate=True)
    layers = target.model.model.layers
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)


def test_a_slow_moment_does_not_count():
    """One layer of one pass was interrupted, and so was everything else of another pass."""
    quiet_pass, loud_layer, loud_rest = [1.0, 1.0, 2.0, 5.0], [90.0, 1.0, 2.0, 5.0], [1.0, 1.0, 2.0, 70.0]
    kinds = ["full", "full", "sliding"]
    assert costs._estimate([loud_layer, quiet_pass, loud_rest], kinds) == 9.0
