"""Training: the network that learns is the one that drafts, and an interrupted run is the same run."""

import json
from dataclasses import replace

import pytest
import torch
from drafter_spec import random_checkpoint, second_spec, small_spec
from test_drafter_network import run as run_network
from torch.nn import functional as F

from dflash_core.checkpoint.base import DraftCheckpoint
from dflash_core.checkpoint.save import save_checkpoint
from dflash_core.drafter.network import DraftNetwork
from dflash_core.errors import CheckpointError, DFlashError, SettingsError, UnsupportedError
from dflash_core.spec import LayerSpec
from dflash_core.training.batches import HELD_OUT, Corpus, collate, epoch
from dflash_core.training.features import Shard
from dflash_core.training.loss import accepted, decay_weights, dpace_weights, head_loss
from dflash_core.training.model import Blocks, TrainableDraft
from dflash_core.training.options import TrainOptions
from dflash_core.training.run import begin, load_state, read_log
from dflash_core.training.start import draft_tensors, random_tensors
from dflash_core.training.trainer import Trainer, rate

SPECS = {
    "first": small_spec(),
    "second": second_spec(),
    "symmetric window": small_spec(layers=(LayerSpec(4, False), LayerSpec(None, True))),
    "scaled": small_spec(input_embedding_scale=3.0),
}


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_a_block_in_training_is_a_block_in_drafting(name):
    spec = SPECS[name]
    checkpoint = random_checkpoint(spec)
    generator = torch.Generator().manual_seed(1)
    taps = torch.randn(2, 17, spec.tap_width, generator=generator)
    anchors = torch.tensor([[3, 16, 9], [12, -1, 1]])
    embeddings = torch.randn(2, 3, spec.block_size, spec.hidden_size, generator=generator)
    trained = TrainableDraft(spec, checkpoint.tensors)(Blocks(taps, embeddings, anchors), torch.float32)
    network = DraftNetwork(checkpoint)
    for row, column in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2)):
        context = taps[row, : int(anchors[row, column])]
        drafted = run_network(network, context, embeddings[row, column][None])
        torch.testing.assert_close(trained[row, column], drafted[0], rtol=1e-4, atol=1e-5)
    assert trained.isfinite().all()  # padding too


def test_what_cannot_be_trained_is_refused():
    spec = small_spec(attention_bias=True)
    with pytest.raises(UnsupportedError, match="attention bias"):
        TrainableDraft(spec, random_checkpoint(spec).tensors)


def test_the_chunked_loss_is_the_plain_one(monkeypatch):
    monkeypatch.setattr("dflash_core.training.loss.CHUNK", 5)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(13, 8, generator=generator, requires_grad=True)
    head = torch.randn(20, 8, generator=generator)
    labels = torch.randint(-1, 20, (13,), generator=generator)
    weights = torch.rand(13, generator=generator)
    loss, log_probs, right = head_loss(hidden, head, labels, weights)
    (gradient,) = torch.autograd.grad(3 * loss, hidden)
    logits = hidden @ head.t()
    each = F.cross_entropy(logits, labels, ignore_index=-1, reduction="none")
    (expected,) = torch.autograd.grad(3 * (each * weights).sum(), hidden)
    torch.testing.assert_close(loss, (each * weights).sum())
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(log_probs, -each.detach())
    assert torch.equal(right, (logits.argmax(-1) == labels) & (labels >= 0))


def test_weights_of_slots():
    torch.testing.assert_close(decay_weights(4, 2.0), torch.tensor([0.0, -0.5, -1.0]).exp())
    sure, unsure = dpace_weights(torch.ones(1, 3)), dpace_weights(torch.zeros(1, 3))
    assert sure.tolist() == [[3.0, 2.0, 1.0]]
    assert unsure.tolist() == [[0.875, 0.375, 0.125]]
    assert accepted(torch.tensor([[True, True, False, True], [False, True, True, True]])).tolist() == [2, 0]


def corpus(spec, sequences=140, seed=0):
    """Text in which every token follows from the one before, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(12, 40, (sequences,), generator=generator)
    following = torch.randperm(spec.vocab_size - 1, generator=generator)
    parts = []
    for length in lengths.tolist():
        token = int(torch.randint(0, spec.vocab_size - 1, (1,), generator=generator))
        row = []
        for _ in range(length):
            row.append(token)
            token = int(following[token])
        parts.append(torch.tensor(row))
    tokens = torch.cat(parts)
    loss = torch.cat([torch.arange(len(part)) >= 4 for part in parts])
    table = torch.randn(spec.vocab_size, spec.tap_width, generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return Corpus.of([Shard(tokens.int(), loss, offsets, table[tokens].bfloat16())])


def test_every_training_sequence_comes_once_an_epoch_and_none_that_is_held_out():
    text = corpus(small_spec())
    seen = [one for batch in epoch(text, 4, seed=3, number=0) for one in batch]
    assert len(set(seen)) == len(seen) > len(text.training) - 4
    assert not set(seen) & set(text.held_out)
    assert len(text.held_out) == -(-140 // HELD_OUT)
    assert epoch(text, 4, 3, 0) == epoch(text, 4, 3, 0) != epoch(text, 4, 3, 1)


def test_anchors_are_tokens_that_the_targets_own_follow():
    text = corpus(small_spec())
    batch = collate(text, text.training[:6], anchors=50, slots=5, seed=7)
    shard = text.shards[0]
    for row, (_, index) in enumerate(text.training[:6]):
        begin_, end = int(shard.offsets[index]), int(shard.offsets[index + 1])
        tokens = shard.tokens[begin_:end].tolist()
        places = [place for place in batch.anchors[row].tolist() if place >= 0]
        assert sorted(places) == list(range(3, len(tokens) - 1))  # the first answer token is at 4
        for column, place in enumerate(places):
            assert int(batch.anchor_tokens[row, column]) == tokens[place]
            after = tokens[place + 1 : place + 5]
            assert batch.labels[row, column].tolist() == after + [-1] * (4 - len(after))
    again = collate(text, text.training[:6], anchors=50, slots=5, seed=8)
    assert not torch.equal(batch.anchors, again.anchors)


def trainer(folder, **changes):
    spec = small_spec()
    options = TrainOptions(**{"steps": 60, "batch": 8, "anchors": 6, "block_size": 5, **changes})
    generator = torch.Generator().manual_seed(5)
    embedding = torch.randn(spec.vocab_size, spec.hidden_size, generator=generator)
    model = TrainableDraft(spec, random_tensors(spec, options.seed))
    begin(folder, options, {"target": "toy"})
    return Trainer(model, corpus(spec), embedding, embedding, options, folder), model


def test_a_draft_learns_what_there_is_to_learn(tmp_path):
    run, _ = trainer(tmp_path, steps=150, learning_rate=5e-3)
    before = run.evaluate()
    progress = run.train()
    assert before < 1.2
    assert progress.acceptance_length > 3.0
    assert [line.step for line in read_log(tmp_path)] == [50, 100, 150]


def test_an_interrupted_run_is_the_same_run(tmp_path):
    """Weights are compared bit by bit; what is lost to the interruption is done again."""
    whole, model = trainer(tmp_path / "whole", noise=0.05, weighting="dpace")
    whole.train()
    steps = iter(range(23))
    first, _ = trainer(tmp_path / "parts", noise=0.05, weighting="dpace")
    first.train(keep_going=lambda: next(steps, None) is not None)
    second, again = trainer(tmp_path / "parts", noise=0.05, weighting="dpace")
    assert second.train().step == 60
    for name in model.names:
        assert torch.equal(model.parameter(name), again.parameter(name)), name


def test_a_folder_is_one_run(tmp_path):
    trainer(tmp_path)
    with pytest.raises(DFlashError, match=r"holds a run with learning_rate = 0\.001, not 0\.01"):
        trainer(tmp_path, learning_rate=0.01)


def test_a_damaged_state_is_named(tmp_path):
    run, model = trainer(tmp_path, steps=2)
    run.train()
    state = tmp_path / "state.safetensors"
    state.write_bytes(state.read_bytes()[:500])
    run, _ = trainer(tmp_path, steps=2)
    with pytest.raises(DFlashError, match=r"state\.safetensors is damaged"):
        run.train()
    assert load_state(tmp_path / "nothing", model, run._optimizer) is None


def test_only_the_tokens_of_the_draft_vocabulary_are_learnt(tmp_path):
    """The same whether the vocabulary is a number or a file that lists as much, and less than with all."""
    listed = tmp_path / "vocab.json"
    listed.write_text(json.dumps(list(range(20))))
    weights = []
    for name, vocab in (("number", 20), ("file", str(listed)), ("all", None)):
        run, model = trainer(tmp_path / name, steps=3, draft_vocab=vocab)
        run.train()
        weights.append(model.parameter("fc.weight").detach())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_training_goes_on_from_another_draft(tmp_path):
    spec = small_spec()
    tensors = random_tensors(spec, 3)
    save_checkpoint(DraftCheckpoint(spec, tensors), tmp_path / "draft", dialect="zlab", dtype="float32")
    found = draft_tensors(spec, tmp_path / "draft")
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    deeper = replace(spec, layers=spec.layers * 2)
    with pytest.raises(CheckpointError, match="choose the layers"):
        draft_tensors(deeper, tmp_path / "draft")
    with pytest.raises(CheckpointError, match="no folder"):
        draft_tensors(spec, tmp_path / "nothing")


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"block_size": 1},
        {"learning_rate": 0.0},
        {"gamma": -1.0},
        {"dtype": "int8"},
        {"weighting": "x"},
    ],
)
def test_options_that_make_no_sense(changes):
    with pytest.raises(SettingsError, match=next(iter(changes))):
        TrainOptions(**changes)


def test_the_learning_rate_rises_and_falls():
    options = replace(TrainOptions(), steps=100, warmup=0.1)
    rates = [rate(step, options) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.05


def test_too_few_sequences_are_an_error(tmp_path):
    with pytest.raises(DFlashError, match="fewer than a batch"):
        trainer(tmp_path, batch=500)
