"""The draft network: what its spec says is honoured or refused, and its parts can be driven by an engine."""

from dataclasses import replace

import pytest
import torch
from drafter_spec import random_checkpoint, second_spec, small_spec
from torch import nn

from dflash_core.checkpoint.base import DraftCheckpoint
from dflash_core.drafter.context import ContextView, ContextZone
from dflash_core.drafter.network import DraftNetwork
from dflash_core.errors import CheckpointError, UnsupportedError
from dflash_core.spec import LayerSpec, RopeSpec

SPECS = {
    "first": small_spec(),
    "second": second_spec(),
    "biased": small_spec(attention_bias=True, attention_sinks=True, attention_value_scale=0.7),
    "narrow taps": small_spec(target_hidden_size=10, owns_embedding=True, owns_head=True),
}


def inputs(spec, batch=1, context=11, seed=0):
    generator = torch.Generator().manual_seed(seed)
    taps = torch.randn(batch * context, spec.tap_width, generator=generator)
    embeddings = torch.randn(batch, spec.block_size, spec.hidden_size, generator=generator)
    return taps, embeddings


def run(network, taps, embeddings, slots=None, num_slots=64, **options):
    """A forward over slots that an engine has numbered: all layers in one zone, garbage elsewhere."""
    batch, block = embeddings.shape[:2]
    context = len(taps) // batch
    slots = torch.randperm(num_slots)[: len(taps)] if slots is None else slots
    steps = torch.arange(context)
    k, v = network.context_kv(network.context_features(taps), steps.repeat(batch))
    pools = k.new_full((2, k.shape[0], num_slots, *k.shape[2:]), float("nan"))
    pools[0][:, slots], pools[1][:, slots] = k, v
    view = ContextView(slots.view(batch, context), torch.zeros(batch, dtype=torch.int64), None)
    zone = ContextZone(tuple(range(k.shape[0])), *pools, view)
    positions = (context + torch.arange(block)).expand(batch, block)
    return network(embeddings, positions, [zone], **options)


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_where_an_engine_puts_the_context_does_not_matter(name):
    network = DraftNetwork(random_checkpoint(SPECS[name]))
    taps, embeddings = inputs(SPECS[name])
    one, other = (run(network, taps, embeddings) for _ in range(2))
    assert one.shape == embeddings.shape
    assert one.isfinite().all()
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_asking_for_leading_slots_only_changes_nothing_about_them(name):
    network = DraftNetwork(random_checkpoint(SPECS[name]))
    taps, embeddings = inputs(SPECS[name], batch=2)
    slots = torch.arange(len(taps))
    whole, few = (run(network, taps, embeddings, slots, outputs=outputs) for outputs in (None, 3))
    assert few.shape[1] == 3
    torch.testing.assert_close(few, whole[:, :3], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_slots_past_a_rows_block_length_reach_no_other_slot(name):
    network = DraftNetwork(random_checkpoint(SPECS[name]))
    taps, embeddings = inputs(SPECS[name], batch=2)
    slots, lengths = torch.arange(len(taps)), torch.tensor([3, 5])
    one = run(network, taps, embeddings, slots, block_lengths=lengths)
    alone = run(network, taps, embeddings[:, :3], slots)
    torch.testing.assert_close(one[0, :3], alone[0], atol=2e-6, rtol=1e-5)
    embeddings[0, 3:] = float("nan")
    assert torch.equal(run(network, taps, embeddings, slots, block_lengths=lengths)[0, :3], one[0, :3])


@pytest.mark.parametrize("name", SPECS)
def test_every_matrix_but_the_convolution_is_a_linear_layer(name):
    """So that a faster product can be put in their place."""
    network = DraftNetwork(random_checkpoint(SPECS[name]))
    products = {module.weight for module in network.modules() if isinstance(module, nn.Linear)}
    matrices = {parameter for parameter in network.parameters() if parameter.dim() == 2}
    assert matrices == products


def test_a_layers_key_and_value_weights_are_the_contexts_own_memory():
    network = DraftNetwork(random_checkpoint(small_spec(attention_bias=True)))
    for index, layer in enumerate(network.layers):
        weight = layer.self_attn.kv_proj.weight
        whole = network.context.kv_proj.weight
        assert weight.data_ptr() == whole[index * len(weight) :].data_ptr()


@torch.no_grad()
def test_value_scale_is_as_good_as_scaled_value_weights():
    spec = small_spec(attention_value_scale=0.6, attention_bias=True)
    checkpoint = random_checkpoint(spec)
    scaled = {
        name: tensor * 0.6 if ".v_proj." in name else tensor for name, tensor in checkpoint.tensors.items()
    }
    plain = DraftCheckpoint(replace(spec, attention_value_scale=1.0), scaled)
    taps, embeddings = inputs(spec)
    ours, theirs = (run(DraftNetwork(c), taps, embeddings) for c in (checkpoint, plain))
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)


@torch.no_grad()
def test_sinks_are_read():
    spec = small_spec(attention_sinks=True)
    checkpoint = random_checkpoint(spec)
    name = "layers.0.self_attn.attention_sink_bias"
    taps, embeddings = inputs(spec)

    def with_sinks(value):
        tensors = {**checkpoint.tensors, name: torch.full((spec.num_heads,), value)}
        return run(DraftNetwork(DraftCheckpoint(spec, tensors)), taps, embeddings)

    assert not torch.allclose(with_sinks(0.0), with_sinks(3.0), atol=1e-3)


@torch.no_grad()
def test_window_and_causality_are_those_of_each_layer():
    """With one layer, what is outside the window or in the future of a slot cannot reach it."""
    taps, embeddings = inputs(small_spec(), context=12)
    slots = torch.arange(12)
    changed, later = taps.clone(), embeddings.clone()
    changed[:4] += 1.0
    later[:, 3:] += 1.0

    def reaches(layer, taps, embeddings):
        network = DraftNetwork(random_checkpoint(small_spec(layers=(layer,))))
        before = run(network, *inputs(small_spec(), context=12), slots)
        return (run(network, taps, embeddings, slots) - before).abs().amax((0, 2)) > 1e-5

    assert reaches(LayerSpec(None, False), changed, embeddings).all()
    # the window of 10 at position 12 begins at 3, that at 13 at 4
    assert reaches(LayerSpec(10, False), changed, embeddings).tolist() == [True, False, False, False, False]
    assert reaches(LayerSpec(None, False), taps, later).all()
    assert reaches(LayerSpec(None, True), taps, later).tolist() == [False, False, False, True, True]
    assert reaches(LayerSpec(2, False), taps, later).tolist() == [False, False, True, True, True]


@torch.no_grad()
def test_bfloat16_is_close_to_float32():
    spec = second_spec()
    checkpoint = random_checkpoint(spec)
    taps, embeddings = inputs(spec)
    high = run(DraftNetwork(checkpoint), taps, embeddings)
    low = run(DraftNetwork(checkpoint, dtype=torch.bfloat16), taps, embeddings)
    assert low.dtype == torch.bfloat16
    assert (low.float() - high).abs().mean() < 0.02 * high.abs().mean()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "mish"}, "hidden_act 'mish'"),
        ({"rope": RopeSpec(1e4, kind="yarn", factor=2.0)}, "original_max_position_embeddings"),
    ],
)
def test_what_is_not_done_is_refused_by_name(changes, message):
    with pytest.raises(UnsupportedError, match=message):
        DraftNetwork(random_checkpoint(small_spec(**changes)))


def test_a_missing_tensor_is_named():
    checkpoint = random_checkpoint(small_spec())
    tensors = {name: x for name, x in checkpoint.tensors.items() if "k_norm" not in name}
    with pytest.raises(CheckpointError, match=r"layers\.0\.self_attn\.k_norm\.weight"):
        DraftNetwork(DraftCheckpoint(checkpoint.spec, tensors))
