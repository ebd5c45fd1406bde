"""Distillation: slots learn what the target thought likely in their place; without it nothing changes."""

import json
from dataclasses import replace

import pytest
import torch
from drafter_spec import small_spec
from law_target import LawTarget
from safetensors.torch import load_file
from torch.nn import functional as F

from dflash_core.errors import DFlashError, SettingsError
from dflash_core.training.batches import Corpus, collate
from dflash_core.training.data.store import Answer, AnswerStore
from dflash_core.training.features import compute_features, read_shards
from dflash_core.training.likely import TOP, Likely, compute_likely, size_of_likely
from dflash_core.training.loss import head_loss
from dflash_core.training.model import TrainableDraft
from dflash_core.training.options import TrainOptions
from dflash_core.training.run import RUN, begin
from dflash_core.training.start import random_tensors
from dflash_core.training.trainer import Trainer

SPEC = small_spec()
TAPS = tuple(range(SPEC.tap_width // SPEC.hidden_size))


def answers(count, seed=0):
    """Text in which every token follows from the one before with a probability of 0.9."""
    generator = torch.Generator().manual_seed(seed)
    law = law_of()
    found = []
    for number in range(count):
        length = int(torch.randint(8, 36, (1,), generator=generator))
        row = [int(torch.randint(0, SPEC.vocab_size, (1,), generator=generator))]
        for _ in range(length):
            row.append(int(torch.multinomial(law[row[-1]], 1, generator=generator)))
        found.append(Answer(row[:4], row[4:], {"id": f"{seed}-{number}", "source": "made up"}))
    return found


def law_of():
    """[V, V]: each token has one likely successor."""
    generator = torch.Generator().manual_seed(9)
    rest = torch.rand(SPEC.vocab_size, SPEC.vocab_size, generator=generator)
    law = 0.1 * rest / rest.sum(-1, keepdim=True)
    law[torch.arange(len(law)), torch.randperm(len(law), generator=generator)] += 0.9
    return law


@pytest.fixture
def target():
    return LawTarget(law_of(), SPEC.hidden_size)


@pytest.fixture
def data(tmp_path):
    AnswerStore(tmp_path / "data", {"seed": 0}).add(answers(140))
    return tmp_path / "data"


def corpus(target, data, folder, with_likely=True):
    compute_features(target, TAPS, data, folder)
    if with_likely:
        compute_likely(target, data, folder)
    return Corpus.of(read_shards(data, folder, SPEC.tap_width, with_likely))


def trainer(folder, text, **changes):
    options = TrainOptions(
        **{"steps": 40, "batch": 8, "anchors": 6, "block_size": 5, "start": "random", **changes}
    )
    embedding = torch.randn(SPEC.vocab_size, SPEC.hidden_size, generator=torch.Generator().manual_seed(5))
    model = TrainableDraft(SPEC, random_tensors(SPEC, options.seed))
    begin(folder, options, {"target": "law"})
    return Trainer(model, text, embedding, embedding, options, folder), model


def assert_equal_weights(one, other):
    for name in one.names:
        assert torch.equal(one.parameter(name), other.parameter(name)), name


def test_the_loss_with_more_labels_is_that_of_the_mixed_distribution(monkeypatch):
    monkeypatch.setattr("dflash_core.training.loss.CHUNK", 5)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(13, 8, generator=generator, requires_grad=True)
    head = torch.randn(20, 8, generator=generator)
    labels = torch.randint(-1, 20, (13,), generator=generator)
    weights = torch.rand(13, generator=generator)
    others = torch.stack([torch.randperm(20, generator=generator)[:4] for _ in range(13)])
    others[3:6, 2:] = -1
    others[7] = -1
    others[9, 0] = labels[9] = 11  # as it usually is: the label is among the likely
    shares = torch.rand(13, 4, generator=generator)
    loss, log_probs, right, *_ = head_loss(hidden, head, labels, weights, others=others, other_weights=shares)
    (gradient,) = torch.autograd.grad(3 * loss, hidden)

    mixture = torch.zeros(13, 21)
    mixture.scatter_add_(1, labels[:, None] % 21, weights[:, None])
    mixture.scatter_add_(1, others % 21, shares)
    expected = F.cross_entropy(hidden @ head.t(), mixture[:, :20], reduction="sum")
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(3 * expected, hidden)[0])
    alone = head_loss(hidden, head, labels, weights)
    assert torch.equal(log_probs, alone[1])
    assert torch.equal(right, alone[2])


def test_what_is_likely_is_shared_out_among_the_tokens_that_a_draft_knows():
    rows = torch.tensor([-1, 0, -1, 1, 2, -1])  # tokens 0 to 4, then "none"
    likely = Likely(
        torch.tensor([[1, 0, 4], [2, 0, -1], [3, -1, -1]], dtype=torch.int32),
        torch.tensor([[0.5, 0.25, 0.125], [0.5, 0.25, 0.0], [0.25, 0.0, 0.0]], dtype=torch.float16),
    )
    labels, shares = likely.among(rows)
    assert labels.tolist() == [[0, -1, 2], [-1, -1, -1], [1, -1, -1]]
    torch.testing.assert_close(shares, torch.tensor([[0.8, 0.0, 0.2], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))


def test_a_slot_learns_the_law_after_the_token_before_it(target, data, tmp_path, monkeypatch):
    """That of slot 1 comes after the anchor itself, wherever the runs of the target began and ended."""
    monkeypatch.setattr("dflash_core.training.likely.CHUNK", 3)
    text = corpus(target, data, tmp_path / "features")
    batch = collate(text, text.training[:30], anchors=50, slots=5, seed=7)
    before = torch.cat([batch.anchor_tokens[..., None], batch.labels[..., :-1]], -1)
    there = batch.labels >= 0
    best = law_of()[before[there]].topk(TOP)
    assert there.sum() > 500
    torch.testing.assert_close(batch.likely.probs[there].float(), best.values, rtol=1e-3, atol=1e-6)
    assert torch.equal(batch.likely.ids[there].long(), best.indices)


def test_a_draft_learns_from_what_was_likely_alone(target, data, tmp_path):
    run, _ = trainer(
        tmp_path / "run",
        corpus(target, data, tmp_path / "features"),
        distill=1.0,
        steps=200,
        learning_rate=5e-3,
    )
    before = run.evaluate()
    progress = run.train()
    assert before < 1.2
    assert progress.acceptance_length > 1.8


def test_without_distillation_a_run_is_the_same_with_and_without_what_was_likely(target, data, tmp_path):
    runs = []
    for name in ("without", "with"):
        text = corpus(target, data, tmp_path / name, with_likely=name == "with")
        run, model = trainer(tmp_path / f"run {name}", text, steps=5)
        run.train()
        runs.append(model)
    assert_equal_weights(*runs)
    assert not list((tmp_path / "without").glob(f"*top{TOP}*"))


@pytest.mark.parametrize("vocabulary", [None, 20])
def test_the_share_decides(target, data, tmp_path, vocabulary):
    """Of the first step's loss; a target that is sure of its token says the same twice."""
    text = corpus(target, data, tmp_path / "features")
    (shard,) = text.shards
    certain = Likely(shard.tokens.roll(-1)[:, None], torch.ones(len(shard.tokens), 1))
    sure = Corpus.of([replace(shard, likely=certain)])

    def first_loss(name, corpus, share):
        folder = tmp_path / f"{name} {share}"
        run, _ = trainer(folder, corpus, steps=1, distill=share, draft_vocab=vocabulary)
        return run.train().loss

    hard, soft = first_loss("text", text, 0.0), first_loss("text", text, 1.0)
    assert soft != pytest.approx(hard, rel=1e-5)
    assert first_loss("text", text, 0.25) == pytest.approx(0.75 * hard + 0.25 * soft, rel=1e-6)
    for share in (0.25, 1.0):
        assert first_loss("sure", sure, share) == pytest.approx(hard, rel=1e-6)


def test_an_interrupted_run_is_the_same_run(target, data, tmp_path):
    """Weights are compared bit by bit; what was likely is read again from disk."""
    text = corpus(target, data, tmp_path / "features")
    changes = {"distill": 0.7, "weighting": "dpace", "draft_vocab": 30}
    whole, model = trainer(tmp_path / "whole", text, **changes)
    whole.train()
    steps = iter(range(17))
    first, _ = trainer(tmp_path / "parts", text, **changes)
    first.train(keep_going=lambda: next(steps, None) is not None)
    text = corpus(target, data, tmp_path / "features")
    second, again = trainer(tmp_path / "parts", text, **changes)
    assert second.train().step == 40
    assert_equal_weights(model, again)


def test_only_what_is_missing_is_computed(target, data, tmp_path):
    """First for features that were there alone, then for answers that came later."""
    folder = tmp_path / "features"
    corpus(target, data, folder, with_likely=False)
    features = (folder / "shard-00000.bf16").stat().st_mtime_ns
    forwards = target.forwards
    corpus(target, data, folder)
    assert target.forwards > forwards
    assert (folder / "shard-00000.bf16").stat().st_mtime_ns == features
    file = folder / f"shard-00000.top{TOP}"
    first = file.stat().st_mtime_ns
    assert file.stat().st_size == size_of_likely(data)

    AnswerStore(data, {"seed": 0}).add(answers(10, seed=1))
    forwards = target.forwards
    text = corpus(target, data, folder)
    assert len(text.training) + len(text.held_out) == 150
    assert file.stat().st_mtime_ns == first
    again = target.forwards
    corpus(target, data, folder)
    assert again > forwards
    assert target.forwards == again


def test_an_interrupted_file_is_not_there(target, data, tmp_path):
    class Stopped(Exception):
        pass

    def stop(done, total):
        assert total == 140
        if done == 100:
            raise Stopped

    with pytest.raises(Stopped):
        compute_likely(target, data, tmp_path / "features", stop)
    assert [path.name for path in (tmp_path / "features").glob("[!.]*")] == [f"top{TOP}.json"]


def test_what_belongs_to_another_target_or_shard_is_refused(target, data, tmp_path):
    folder = tmp_path / "features"
    corpus(target, data, folder)
    with pytest.raises(DFlashError, match=rf"top{TOP}\.json was made of .*use another folder"):
        compute_likely(LawTarget(law_of(), SPEC.hidden_size, name="another"), data, folder)
    file = folder / f"shard-00000.top{TOP}"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DFlashError, match="delete it to have it computed again"):
        read_shards(data, folder, SPEC.tap_width, with_likely=True)
    assert len(read_shards(data, folder, SPEC.tap_width)) == 1  # which does not look at it


def test_the_prompt_has_nothing_likely(target, data, tmp_path):
    """It is nobody's label, so it is not computed."""
    (shard,) = corpus(target, data, tmp_path / "features").shards
    starts = shard.offsets[:-1]
    there = shard.likely.ids[:, 0] >= 0
    assert not there[starts].any()
    assert not there[starts + 2].any()
    assert there[starts + 3].all()
    assert not there[shard.offsets[1:] - 1].any()
    assert int(there.sum()) == int(load_file(data / "shard-00000.safetensors")["loss"].sum())


def test_a_vocabulary_may_be_smaller_than_what_is_kept(data, tmp_path):
    """The rest says "none"."""
    law = torch.eye(SPEC.vocab_size)[:, :5] + 1.0
    compute_likely(LawTarget(law / law.sum(-1, keepdim=True), SPEC.hidden_size), data, tmp_path / "features")
    compute_features(LawTarget(law, SPEC.hidden_size), TAPS, data, tmp_path / "features")
    (shard,) = read_shards(data, tmp_path / "features", SPEC.tap_width, with_likely=True)
    there = shard.likely.ids[:, 0] >= 0
    assert (shard.likely.ids[there, :5] >= 0).all()
    assert (shard.likely.ids[:, 5:] == -1).all()
    torch.testing.assert_close(
        shard.likely.probs[there].float().sum(-1), torch.ones(int(there.sum())), rtol=2e-3, atol=0
    )


def test_distillation_without_what_was_likely_is_refused(target, data, tmp_path):
    text = corpus(target, data, tmp_path / "features", with_likely=False)
    with pytest.raises(DFlashError, match=r"distill is 0\.5, but"):
        trainer(tmp_path / "run", text, distill=0.5)
    with pytest.raises(SettingsError, match=r"distill is 1\.5"):
        TrainOptions(distill=1.5)


def test_a_run_of_a_version_without_an_option_goes_on(tmp_path):
    """With the option at its default, and with nothing else."""
    begin(tmp_path, TrainOptions(), {"target": "law"})
    known = json.loads((tmp_path / RUN).read_text())
    del known["distill"]
    (tmp_path / RUN).write_text(json.dumps(known))
    begin(tmp_path, TrainOptions(), {"target": "law"})
    with pytest.raises(DFlashError, match=r"distill = 0\.0, not 0\.5"):
        begin(tmp_path, TrainOptions(distill=0.5), {"target": "law"})
