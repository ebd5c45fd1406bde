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
from dflash_core.errors import CheckpointError, DFlashError, UnsupportedError
from dflash_core.spec import LayerSpec, MarkovSpec
from dflash_core.training import conv
from dflash_core.training.batches import HELD_OUT, Corpus, collate, epoch
from dflash_core.training.features import Shard
from dflash_core.training.loss import accepted, choice_loss, decay_weights, dpace_weights, head_loss
from dflash_core.training.model import SELECTOR, Blocks, TrainableDraft
from dflash_core.training.norm import rms_norm
from dflash_core.training.options import TrainOptions
from dflash_core.training.run import begin, load_state, read_log
from dflash_core.training.start import (
    TABLES,
    draft_tensors,
    learnt_successors,
    random_tensors,
)
from dflash_core.training.trainer import Trainer, rate
from dflash_kernels.dynamic_conv import dynamic_conv
from dflash_kernels.selector_walk import selector_walk

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
    loss, log_probs, right, best = head_loss(hidden, head, labels, weights, keep=3)
    (gradient,) = torch.autograd.grad(3 * loss, hidden)
    logits = hidden @ head.t()
    each = F.cross_entropy(logits, labels, ignore_index=-1, reduction="none")
    (expected,) = torch.autograd.grad(3 * (each * weights).sum(), hidden)
    torch.testing.assert_close(loss, (each * weights).sum())
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(log_probs, -each.detach())
    assert torch.equal(right, (logits.argmax(-1) == labels) & (labels >= 0))
    assert torch.equal(best, logits.topk(3).indices)


@pytest.mark.parametrize("shape", [(7, 8), (2, 3, 5, 8), (1, 0, 8)])
def test_the_norms_gradient_is_autograds(shape):
    generator = torch.Generator().manual_seed(0)
    x, out = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    weight = torch.rand(8, generator=generator, dtype=torch.float64)
    given = x.requires_grad_(), weight.requires_grad_()
    plain = F.rms_norm(x, (8,), weight, 1e-3)
    torch.testing.assert_close(rms_norm(*given, 1e-3), plain, rtol=1e-6, atol=1e-6)
    own = torch.autograd.grad(rms_norm(*given, 1e-3), given, out)
    torch.testing.assert_close(own, torch.autograd.grad(plain, given, out), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 6, 3, 2), (3, 7, 10, 1, 3), (2, 2, 8, 8, 4)], ids=str)
def test_the_convolutions_gradient_is_autograds(shape):
    batch, slots, width, groups, size = shape[0], shape[1], shape[2], shape[2] // shape[3], shape[4]
    shapes = (batch, slots, width), (batch, slots, size, groups), (size, width)
    arguments = [torch.randn(each, dtype=torch.float64, requires_grad=True) for each in shapes]
    assert torch.autograd.gradcheck(conv.dynamic_conv, arguments)
    floats = [each.detach().float() for each in arguments]
    torch.testing.assert_close(conv.dynamic_conv(*floats), dynamic_conv(*floats))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_norm_of_large_vectors_does_not_overflow(dtype):
    x = (torch.randn(4, 4096, generator=torch.Generator().manual_seed(0)) * 1200).to(dtype)
    plain = F.rms_norm(x.float(), (4096,), None, 1e-5)
    found = rms_norm(x, torch.ones(4096, dtype=dtype), 1e-5)
    torch.testing.assert_close(found.float(), plain, rtol=0.02, atol=0.02)


def test_of_tied_tokens_the_first_is_the_best():
    hidden, head = torch.ones(2, 3), torch.ones(4, 3)
    labels = torch.tensor([0, 2])
    assert head_loss(hidden, head, labels, torch.ones(2))[2].tolist() == [True, False]


def test_weights_of_slots():
    torch.testing.assert_close(decay_weights(4, 2.0), torch.tensor([0.0, -0.5, -1.0]).exp())
    there = torch.ones(1, 3, dtype=torch.bool)
    sure, unsure = dpace_weights(torch.ones(1, 3), there), dpace_weights(torch.zeros(1, 3), there)
    assert sure.tolist() == [[3.0, 2.0, 1.0]]
    assert unsure.tolist() == [[0.875, 0.375, 0.125]]
    short = dpace_weights(torch.ones(1, 3), torch.tensor([[True, True, False]]))
    assert short.tolist() == [[2.0, 1.0, 0.0]]
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


def test_no_more_anchors_are_padded_than_a_sequence_has_tokens():
    text = corpus(small_spec())
    chosen = text.training[:6]
    some, many = (collate(text, chosen, anchors, slots=5, seed=7) for anchors in (64, 100_000))
    assert many.anchors.shape[1] == many.taps.shape[1] <= 64
    for name in ("anchors", "anchor_tokens", "labels"):
        assert torch.equal(getattr(some, name), getattr(many, name)), name
    part = collate(text, chosen, 100_000, slots=5, seed=7, rows=range(2))
    assert part.anchors.shape[1] == many.anchors.shape[1]  # of the batch, whoever computes which rows


def markov_spec():
    return small_spec(markov=MarkovSpec(5))


def trainer(folder, spec=None, text=None, **changes):
    spec = spec or small_spec()
    options = TrainOptions(**{"steps": 60, "batch": 8, "anchors": 6, "block_size": 5, **changes})
    generator = torch.Generator().manual_seed(5)
    embedding = torch.randn(spec.vocab_size, spec.hidden_size, generator=generator)
    model = TrainableDraft(spec, random_tensors(spec, options.seed))
    begin(folder, options, {"target": "toy"})
    return Trainer(model, text or corpus(spec), embedding, embedding, options, folder), model


@pytest.mark.parametrize("early", [False, True], ids=["dflash", "dspark"])
def test_a_draft_learns_what_there_is_to_learn(tmp_path, early):
    run, _ = trainer(tmp_path, spec=small_spec(anchor_predicts=early), steps=150, learning_rate=5e-3)
    before = run.evaluate()
    progress = run.train()
    assert before < 1.2
    assert progress.acceptance_length > 3.0
    assert [line.step for line in read_log(tmp_path)] == [50, 100, 150]


@torch.no_grad()
def test_an_anchor_that_predicts_saves_a_slot(tmp_path):
    """Slot k of the network says draft k + 1, the first of them at the anchor's own position."""
    spec = small_spec(anchor_predicts=True)
    run, model = trainer(tmp_path, spec=spec)
    text = corpus(spec)
    batch = collate(text, text.training[:2], anchors=3, slots=spec.block_size, seed=0)
    mask = run._embedding[spec.mask_token_id].expand(2, 3, spec.block_size - 2, -1)
    embeddings = torch.cat([run._embedding[batch.anchor_tokens][:, :, None], mask], 2)
    whole = model(Blocks(batch.taps, embeddings, batch.anchors), torch.float32)
    torch.testing.assert_close(run._hidden(batch), whole)
    assert batch.labels.shape[-1] == whole.shape[2] == spec.network_slots


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
    with pytest.raises(CheckpointError, match=r"taps is \(1, 3, 5\), but \(1, 2, 5\)"):
        draft_tensors(replace(spec, taps=(1, 2, 5)), tmp_path / "draft")
    with pytest.raises(CheckpointError, match="anchor_predicts is False, but True"):
        draft_tensors(replace(spec, anchor_predicts=True), tmp_path / "draft")
    rich = markov_spec()
    save_checkpoint(
        DraftCheckpoint(rich, random_tensors(rich, 3)), tmp_path / "rich", dialect="zlab", dtype="float32"
    )
    with pytest.raises(CheckpointError, match="has Markov head, which would be lost"):
        draft_tensors(spec, tmp_path / "rich")


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


def test_a_choice_is_learnt_where_the_true_token_is_a_candidate():
    scores = torch.tensor([[1.0, 2.0], [0.5, 0.1], [0.0, 0.0]], requires_grad=True)
    candidates = torch.tensor([[7, 3], [4, 5], [1, 2]])
    labels, weights = torch.tensor([7, 9, -1]), torch.tensor([0.5, 1.0, 1.0])
    loss, log_probs, right = choice_loss(scores, candidates, labels, weights)
    torch.testing.assert_close(loss, 0.5 * F.cross_entropy(scores[:1], torch.tensor([0])))
    assert log_probs[1] == float("-inf")
    assert log_probs[2] == 0
    assert right.tolist() == [False, False, False]
    assert choice_loss(scores.flip(1), candidates, labels, weights)[2].tolist() == [True, False, False]
    (gradient,) = torch.autograd.grad(loss, scores)
    assert not gradient[1:].any()


@torch.no_grad()
def test_the_pull_in_training_is_the_pull_in_drafting():
    """Along the tokens that the walk picks, the scores are those of the walk."""
    spec = second_spec()
    checkpoint = random_checkpoint(spec)
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(1, 4, spec.hidden_size, generator=generator)
    unary = torch.randn(1, 4, 3, generator=generator)
    ids = torch.stack([torch.randperm(spec.vocab_size, generator=generator)[:3] for _ in range(4)])
    tensors = {name.removeprefix(SELECTOR): tensor for name, tensor in checkpoint.tensors.items()}
    projected = hidden @ tensors["hidden_projection.weight"].t()
    codebooks = tensors["predecessor_codebook"], tensors["successor_codebook"]
    picks, scores = selector_walk(unary, ids[None], projected, *codebooks, torch.tensor([6]))
    before = torch.cat([torch.tensor([6]), ids.gather(1, picks[0][:, None])[:-1, 0]])
    pull = TrainableDraft(spec, checkpoint.tensors).pull(hidden[0], before, ids)
    torch.testing.assert_close(unary[0] + pull, scores[0])


def forked(spec, sequences=140, seed=0):
    """Pairs of tokens: 1 2, 3 5 or 4 5, the first pair most often, so that a second token is 5 most often."""
    pairs = torch.tensor([[1, 2], [1, 2], [1, 2], [1, 2], [3, 5], [3, 5], [3, 5], [4, 5], [4, 5], [4, 5]])
    generator = torch.Generator().manual_seed(seed)
    tokens = pairs[torch.randint(0, len(pairs), (sequences * 12,), generator=generator)].flatten()
    table = torch.randn(spec.vocab_size, spec.tap_width, generator=generator)
    offsets = torch.arange(0, len(tokens) + 1, 24)
    loss = torch.ones(len(tokens), dtype=torch.bool)
    return Corpus.of([Shard(tokens.int(), loss, offsets, table[tokens].bfloat16())])


@pytest.mark.parametrize("chooser", [second_spec(), markov_spec()], ids=["selector", "markov"])
def test_a_chooser_learns_which_tokens_go_together(tmp_path, chooser):
    """The best token of each slot alone is 1 and then 5, which never follow each other."""
    lengths = []
    for name, spec in (("first", small_spec()), ("second", chooser)):
        run, _ = trainer(tmp_path / name, spec=spec, text=forked(spec), steps=150, learning_rate=5e-3)
        lengths.append(run.train().acceptance_length)
    assert lengths[1] > lengths[0] + 0.2


@pytest.mark.parametrize(
    ("second", "following"), list(zip((second_spec(), markov_spec()), TABLES, strict=True))
)
def test_a_draft_gets_a_head_that_says_nothing_yet(tmp_path, second, following):
    first, preceding = small_spec(), TABLES[following]
    tensors = random_tensors(first, 3)
    save_checkpoint(DraftCheckpoint(first, tensors), tmp_path / "draft", dialect="zlab", dtype="float32")
    found = draft_tensors(second, tmp_path / "draft")
    generator = torch.Generator().manual_seed(0)
    blocks = Blocks(
        torch.randn(1, 9, first.tap_width, generator=generator),
        torch.randn(1, 2, first.block_size, first.hidden_size, generator=generator),
        torch.tensor([[4, 7]]),
    )
    old, new = (
        TrainableDraft(spec, each)(blocks, torch.float32)
        for spec, each in ((first, tensors), (second, found))
    )
    torch.testing.assert_close(old, new)
    head = torch.randn(second.vocab_size, second.hidden_size, generator=generator)
    started = learnt_successors(found, head)
    model = TrainableDraft(second, started)
    before, ids = torch.tensor([1, 2]), torch.tensor([[3, 4], [5, 6]])
    assert not model.pull(new[0, :, 1], before, ids).any()
    assert not torch.equal(started[following], found[following])
    trained = {**found, preceding: torch.ones_like(found[preceding])}
    assert torch.equal(learnt_successors(trained, head)[following], found[following])
