"""What is written down about drafted blocks is what the decoder did with them."""

import json
from dataclasses import replace

import pytest
import torch
from tiny_drafts import tiny_draft
from tiny_targets import prompts, tiny_target

from dflash_core import generation
from dflash_core.checkpoint.confidence import confidence_shapes, fingerprint
from dflash_core.checkpoint.load import load_checkpoint
from dflash_core.checkpoint.validate import validate_checkpoint
from dflash_core.cli import main
from dflash_core.demo import PROMPTS, draft_folder
from dflash_core.drafter.confidence import ConfidenceHead
from dflash_core.errors import RequestError, UnsupportedError
from dflash_core.generation import generate
from dflash_core.plugins import provider
from dflash_core.spec import ConfidenceSpec
from dflash_core.training.confidence import CollectOptions, observe
from dflash_core.verify.greedy import GreedyVerifier

OPTIONS = CollectOptions(max_new_tokens=40, max_batch=3)
KINDS = {"v1": {}, "v2": {"second": True}, "spark": {"spark": True}}


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama")


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_blocks_are_those_of_a_run_of_their_own(target, kind, temperature):
    draft = tiny_draft(target, **kind)
    given = prompts(3, 8, 13, 5)
    observed = observe(target, draft, given, replace(OPTIONS, temperature=temperature))
    for index, prompt in enumerate(given):
        result = generate(
            target, draft, [prompt], max_new_tokens=40, temperature=temperature, seed=index, schedule="fixed"
        )
        stats = result.stats.requests[0]
        own = observed.take(observed.groups == index)
        assert len(own) > 0
        kept, produced = (own.accepted + 1).tolist(), stats.acceptance_lengths[: len(own)]
        assert kept[:-1] == produced[:-1]
        assert (
            kept[-1] >= produced[-1]
        )  # what lies behind an end of the request is accepted, and not produced


def test_the_hidden_states_are_those_that_the_tokens_were_chosen_from(target):
    draft = tiny_draft(target)
    observed = observe(target, draft, prompts(4, 9, 17), OPTIONS)
    logits = draft.head(observed.hidden.float())
    best = logits.log_softmax(-1).max(-1).values
    verified = observed.looked_at
    assert (best - observed.log_probs)[verified].abs().max() < 0.01
    assert observed.hidden.dtype == torch.float16


def test_a_batch_does_not_mix_its_rows_up(target):
    draft = tiny_draft(target)
    given = prompts(4, 9, 17, 6)
    alone = [observe(target, draft, [prompt], OPTIONS) for prompt in given]
    together = observe(target, draft, given, replace(OPTIONS, max_batch=4))
    for index, one in enumerate(alone):
        own = together.take(together.groups == index)
        assert own.accepted.tolist() == one.accepted.tolist()
        verified = one.looked_at
        torch.testing.assert_close(own.hidden[verified], one.hidden[verified], atol=5e-3, rtol=5e-3)


def test_it_ends_where_it_is_told_to(target):
    observed = observe(target, tiny_draft(target), prompts(4, 9, 17), replace(OPTIONS, max_blocks=7))
    assert 7 <= len(observed) < 7 + OPTIONS.max_batch


def test_what_cannot_be_observed_is_refused_in_a_sentence(target):
    with pytest.raises(RequestError, match="Nothing was drafted"):
        observe(target, tiny_draft(target), [], OPTIONS)
    with pytest.raises(UnsupportedError, match="needs a block drafter, not object"):
        observe(target, object(), prompts(4), OPTIONS)


class Listener(GreedyVerifier):
    """Keeps what the drafter said of its proposals."""

    def __init__(self):
        self.heard = []

    def verify(self, proposal, logits, sampling):
        verdict = super().verify(proposal, logits, sampling)
        self.heard.append((proposal, verdict.accepted))
        return verdict


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_draft_with_a_head_says_of_each_token_what_the_head_says_of_its_slot(target, kind, monkeypatch):
    plain = tiny_draft(target, **kind)
    spec = ConfidenceSpec(4, ("slot", "log_prob"), (1.0, 2.0, 1.0, 0.5, 1.0))
    shapes = confidence_shapes(plain.spec, spec)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    draft = tiny_draft(target, **kind)
    draft.confidence = ConfidenceHead(spec, tensors)
    listener = Listener()
    monkeypatch.setattr(generation, "provider", lambda kind, name: listener_or(kind, name, listener))
    options = {"max_new_tokens": 12, "schedule": "fixed", "verifier": "greedy"}
    given = prompts(4, 9, 6)
    with_head = generate(target, draft, given, **options)
    said = [proposal for proposal, _ in listener.heard if proposal.log_probs is not None]
    assert with_head.tokens == generate(target, plain, given, **options).tokens
    observed = observe(target, plain, given[:1], replace(OPTIONS, max_new_tokens=12))
    expected = draft.confidence(observed.hidden[:1], observed.log_probs[:1])[0]
    first = said[0].confidence[0]
    assert said[0].confidence.shape == said[0].tree.tokens.shape
    assert first[0] == 1
    torch.testing.assert_close(first[1:], expected, atol=2e-3, rtol=2e-3)
    listener.heard.clear()
    generate(target, plain, given, **options)
    assert all(proposal.confidence is None for proposal, _ in listener.heard)


def listener_or(kind, name, listener):
    return (lambda: listener) if kind == "verifiers" else provider(kind, name)


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(one) for one in arguments])
    return stop.value.code or 0


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--features", "mood"], "--features is 'mood'"),
        (["--features", "slot,slot"], "--features is 'slot,slot'"),
        (["--demo-pair", "--target", "x"], "--demo-pair stands for a target and a draft"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anything_is_loaded(tmp_path, capsys, more, named):
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    assert run("confidence", "--prompts", tmp_path / "p.jsonl", "--out", tmp_path / "out", *more) == 2
    err = capsys.readouterr().err
    assert named in err
    assert len(err.strip().splitlines()) == 1


def test_a_place_that_is_taken_is_refused_before_hours_are_spent(tmp_path, capsys):
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "out").mkdir()
    assert run("confidence", "--demo-pair", "--prompts", tmp_path / "p.jsonl", "--out", tmp_path / "out") == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.slow
def test_the_real_draft_gets_a_calibrated_head(tmp_path, capsys):
    subjects = ("bread", "rain", "glass", "bees", "tides", "money", "chess", "maps", "salt", "snow")
    texts = [*PROMPTS, *(f"Explain briefly how {one} is made or comes about." for one in subjects)]
    texts += [f"Write a short Python function about {one}." for one in subjects]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    out = tmp_path / "out"
    arguments = ["confidence", "--demo-pair", "--prompts", tmp_path / "p.jsonl", "--out", out, "--json"]
    assert run(*arguments, "-n", "64", "--fast", "off") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["share"] < 0.001
    assert report["validation_after"] <= report["validation_before"]
    assert report["prompts"] == len(texts)
    assert (out / "reliability.svg").read_text().startswith("<svg")
    card = (out / "README.md").read_text()
    assert card.startswith((draft_folder() / "README.md").read_text().rstrip())
    assert f"{report['survival_after']['ece']:.4f} |" in card.partition("## Confidence head")[2]
    checkpoint = load_checkpoint(out)
    assert checkpoint.spec.confidence.hidden_size == report["width"]
    assert validate_checkpoint(out) == []
    source = load_checkpoint(draft_folder())
    assert checkpoint.spec.confidence.draft_sha256 == fingerprint(source.tensors)
    assert all(torch.equal(checkpoint.tensors[name], one) for name, one in source.tensors.items())
    head = ConfidenceHead(checkpoint.spec.confidence, checkpoint.tensors)
    assert sum(one.numel() for one in head.parameters()) == report["head_parameters"]
