"""A confidence head learns what is true of synthetic drafts, and its temperatures never make it worse."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.checkpoint.confidence import confidence_parameters, confidence_shapes
from dflash_core.drafter.confidence import ConfidenceHead
from dflash_core.errors import RequestError
from dflash_core.spec import ConfidenceSpec, DraftSpec, LayerSpec, RopeSpec
from dflash_core.training.confidence import (
    FitOptions,
    Observations,
    sequential_temperatures,
    train_confidence,
)
from dflash_core.training.confidence.calibration import log_loss, reliability, survival
from dflash_core.training.confidence.fit import examples_of, width_within
from dflash_core.training.confidence.observations import split
from dflash_core.training.confidence.plot import reliability_svg
from dflash_core.training.confidence.temperatures import survival_loss

SLOTS, WIDTH = 5, 12
OPTIONS = FitOptions(width=16, epochs=40, dropout=0.0, hidden_scale=1.0)


def drawn(probabilities, seed=0, groups=None):
    """Blocks whose slots are accepted with these probabilities [N, D'], until the first that is not."""
    count, slots = probabilities.shape
    uniform = torch.rand(count, slots, generator=torch.Generator().manual_seed(seed + 1))
    accepted = (uniform < probabilities).long().cumprod(-1).sum(-1)
    groups = torch.arange(count) % 200 if groups is None else groups
    return accepted, torch.full((count,), slots), groups


def synthetic(count=24_000, seed=0):
    """Hidden states that decide acceptance by a known, not linear, function; and those probabilities."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, SLOTS, WIDTH, generator=generator)
    log_probs = -torch.rand(count, SLOTS, generator=generator)
    logit = 1.5 * hidden[..., 0] + hidden[..., 1].abs() + 2.0 * log_probs - 0.4 * torch.arange(SLOTS) + 1.0
    true = logit.sigmoid()
    return Observations(hidden, log_probs, *drawn(true, seed)), true


@pytest.fixture(scope="module")
def fitted():
    observations, _ = synthetic()
    return train_confidence(observations, OPTIONS)


def test_the_head_finds_the_true_probabilities_of_drafts_it_has_not_seen(fitted):
    head, report = fitted
    fresh, true = synthetic(6000, seed=9)
    stated = ConfidenceHead(head.spec, head.tensors)(fresh.hidden, fresh.log_probs)
    assert (stated - true)[fresh.reached].abs().mean() < 0.03
    assert reliability(stated[fresh.reached], fresh.survived[fresh.reached]).ece < 0.02
    best = log_loss(true[fresh.reached], fresh.survived[fresh.reached])
    constant = float(fresh.survived[fresh.reached].double().mean())
    reached = log_loss(stated[fresh.reached], fresh.survived[fresh.reached])
    none = log_loss(torch.full_like(true[fresh.reached], constant), fresh.survived[fresh.reached])
    assert reached < best + 0.05 * (none - best)
    assert report.survival_after.ece < 0.02
    assert report.slots_after.ece < 0.04


def test_what_the_report_counts_is_what_happened(fitted):
    _, report = fitted
    observations, true = synthetic()
    assert (report.blocks, report.prompts) == (24_000, 200)
    assert report.acceptance_length == pytest.approx(1 + float(observations.accepted.double().mean()))
    assert report.slot_acceptance[0] == pytest.approx(float(true[:, 0].mean()), abs=0.02)
    assert report.survival_after.count == 30 * 120 * SLOTS
    assert report.validation_after <= report.validation_before


def test_the_same_seed_gives_the_same_head_and_another_one_another():
    observations, _ = synthetic(2000)
    brief = replace(OPTIONS, epochs=3)
    first, second = train_confidence(observations, brief)[0], train_confidence(observations, brief)[0]
    other = train_confidence(observations, replace(brief, seed=1))[0]
    assert first.spec == second.spec
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)
    assert not all(torch.equal(first.tensors[name], other.tensors[name]) for name in first.tensors)


def test_inputs_of_any_scale_are_taken_as_they_come():
    observations, true = synthetic(8000)
    scale = torch.logspace(-2, 2, WIDTH)
    moved = replace(observations, hidden=observations.hidden * scale + 50 * scale)
    head, _ = train_confidence(moved, OPTIONS)
    stated = ConfidenceHead(head.spec, head.tensors)(moved.hidden, moved.log_probs)
    assert (stated - true)[moved.reached].abs().mean() < 0.06


def test_only_slots_that_were_reached_are_learnt_from():
    hidden = torch.arange(4.0).expand(3, 4)[..., None].clone()
    observations = Observations(
        hidden, torch.zeros(3, 4), torch.tensor([0, 2, 3]), torch.tensor([4, 4, 3]), torch.arange(3)
    )
    examples = examples_of(observations, ())
    assert examples.inputs[:, 0].tolist() == [0, 0, 1, 2, 0, 1, 2]
    assert examples.kept.tolist() == [0, 1, 1, 0, 1, 1, 1]


def test_prompts_are_not_shared_between_the_parts():
    observations, _ = synthetic(2000)
    parts = split(observations, (0.7, 0.15), seed=0)
    groups = [set(part.groups.tolist()) for part in (parts.train, parts.validation, parts.test)]
    assert [len(one) for one in groups] == [140, 30, 30]
    assert len(set.union(*groups)) == 200
    assert sum(map(len, (parts.train, parts.validation, parts.test))) == 2000


FACTORS = torch.tensor([2.0, 0.5, 3.0, 1.0, 1.5])


def test_temperatures_undo_a_known_distortion_of_each_slot():
    generator = torch.Generator().manual_seed(3)
    true = torch.randn(60_000, SLOTS, generator=generator) * 1.2 + 1.0
    observations = Observations(
        torch.zeros(60_000, SLOTS, 1), torch.zeros(60_000, SLOTS), *drawn(true.sigmoid(), seed=3)
    )
    distorted = true * FACTORS
    found = torch.tensor(sequential_temperatures(distorted, observations))
    assert ((found / FACTORS).log().abs() < 0.12).all()
    before = reliability(survival(distorted, torch.ones(SLOTS)).flatten(), observations.survived.flatten())
    after = reliability(survival(distorted, found).flatten(), observations.survived.flatten())
    assert before.ece > 0.02
    assert after.ece < 0.006


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 8), st.floats(-3, 3))
def test_temperatures_never_worsen_the_loss_that_they_are_fitted_to(seed, spread, shift):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(300, 4, generator=generator) * spread + shift
    truth = torch.rand(300, 4, generator=generator)
    accepted, verified, groups = drawn(truth, seed)
    verified = torch.randint(1, 5, (300,), generator=generator)
    observations = Observations(
        torch.zeros(300, 4, 1), torch.zeros(300, 4), torch.minimum(accepted, verified), verified, groups
    )
    found = sequential_temperatures(logits, observations)
    assert all(one > 0 for one in found)
    assert (
        survival_loss(logits, found, observations) <= survival_loss(logits, (1.0,) * 4, observations) + 1e-12
    )


def test_a_slot_that_was_hardly_ever_verified_takes_the_temperature_before_it():
    true = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0)) + 1
    accepted, _, groups = drawn(true.sigmoid())
    verified = torch.full((4000,), 2)
    verified[:10] = 3
    observations = Observations(
        torch.zeros(4000, 3, 1), torch.zeros(4000, 3), torch.minimum(accepted, verified), verified, groups
    )
    found = sequential_temperatures(true * 2, observations)
    assert found[2] == found[1] != 1.0


def test_the_calibration_error_is_what_it_is_by_hand():
    stated = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.9, 0.9])
    happened = torch.tensor([1, 0, 0, 0, 1, 1])
    found = reliability(stated, happened, bins=2)
    assert found.ece == pytest.approx((4 * 0.15 + 2 * 0.1) / 6)
    assert [(one.count, one.frequency) for one in found.bins] == [(4, 0.25), (2, 1.0)]
    expected = -(torch.tensor([0.1, 0.9, 0.9, 0.9, 0.9, 0.9]).double().log().mean())
    assert found.nll == pytest.approx(float(expected))
    assert reliability(torch.tensor([1.0, 0.0]), torch.tensor([1, 0])).ece == 0


def a_spec(width, block=8, heads=4):
    return DraftSpec(
        dialect="zlab",
        hidden_size=width,
        intermediate_size=2 * width,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
        vocab_size=49152,
        layers=(LayerSpec(None, False),),
        taps=(1,),
        block_size=block,
        mask_token_id=5,
        rope=RopeSpec(1e4),
    )


@pytest.mark.parametrize(
    ("width", "parameters", "expected"), [(576, 147e6, 128), (4096, 9e9, 256), (32, 1e4, 1)]
)
def test_the_width_keeps_the_head_below_a_thousandth_of_the_parameters(width, parameters, expected):
    spec = a_spec(width)
    chosen = width_within(spec, ("slot", "log_prob"), parameters)
    assert chosen == expected
    head = ConfidenceSpec(chosen, ("slot", "log_prob"), (1.0,) * 7)
    assert chosen == 1 or confidence_parameters(spec, head) < 0.001 * parameters
    shapes = confidence_shapes(spec, head)
    network = ConfidenceHead(head, {name: torch.zeros(shape) for name, shape in shapes.items()})
    assert sum(one.numel() for one in network.parameters()) == confidence_parameters(spec, head)


def test_fewer_slots_than_a_block_has_get_the_probabilities_of_the_first(fitted):
    head, _ = fitted
    fresh, _ = synthetic(50, seed=4)
    network = ConfidenceHead(head.spec, head.tensors)
    whole = network(fresh.hidden, fresh.log_probs)
    part = network(fresh.hidden[:, :3], fresh.log_probs[:, :3])
    torch.testing.assert_close(part, whole[:, :3])
    longer = torch.cat([fresh.hidden, fresh.hidden[:, -1:]], 1), torch.cat([fresh.log_probs] * 2, 1)[:, :6]
    assert network(*longer).shape == (50, SLOTS + 1)
    assert whole.dtype == torch.float32


def test_a_head_is_calibrated_as_it_is_stored():
    observations, _ = synthetic(3000)
    head, report = train_confidence(observations, replace(OPTIONS, epochs=4), torch.bfloat16)
    assert {one.dtype for one in head.tensors.values()} == {torch.bfloat16}
    parts = split(observations, (0.7, 0.15), OPTIONS.seed)
    network = ConfidenceHead(head.spec, head.tensors)
    logits = network.logits(parts.validation.hidden, parts.validation.log_probs).detach()
    assert report.validation_after == pytest.approx(
        survival_loss(logits, head.spec.temperatures, parts.validation)
    )


@pytest.mark.parametrize("accepted", [0, SLOTS])
def test_drafts_that_all_fare_alike_are_refused_in_a_sentence(accepted):
    observations, _ = synthetic(400)
    same = replace(observations, accepted=torch.full((400,), accepted))
    with pytest.raises(RequestError, match="some must be accepted and some rejected"):
        train_confidence(same, OPTIONS)


def test_too_few_prompts_are_refused_in_a_sentence():
    observations, _ = synthetic(400)
    with pytest.raises(RequestError, match="blocks of 5 prompts; a confidence head needs at least 10"):
        train_confidence(replace(observations, groups=observations.groups % 5), OPTIONS)


def test_the_plot_is_one_file_that_needs_nothing_else(fitted):
    _, report = fitted
    text = reliability_svg("Title <&>", {"one": report.survival_before, "two": report.survival_after})
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    circles = [element for element in root.iter() if element.tag.endswith("circle")]
    assert len(circles) == len(report.survival_before.bins) + len(report.survival_after.bins)
    for circle in circles:
        assert 0 <= float(circle.get("cx")) <= float(root.get("width"))
        assert 0 <= float(circle.get("cy")) <= float(root.get("height"))
