"""Settings of requests become tensors, and nonsense is refused by name."""

import pytest
import torch

from dflash_core.errors import RequestError
from dflash_core.sampling import SamplingParams, sampling_batch


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", -1),
        ("seed", 2**63),
    ],
)
def test_nonsense_is_refused_by_name(setting, value):
    with pytest.raises(RequestError, match=f"^{setting} is {value}; it must be"):
        SamplingParams(**{setting: value})


def test_a_batch_holds_each_requests_settings():
    params = [
        SamplingParams(temperature=0.5, top_k=3, top_p=0.25, min_p=0.125, seed=2**63 - 1),
        SamplingParams(),
    ]
    batch = sampling_batch(params, [10, 2**40])
    assert batch.temperature.tolist() == [0.5, 0.0]
    assert batch.top_k.tolist() == [3, 0]
    assert batch.top_p.tolist() == [0.25, 1.0]
    assert batch.min_p.tolist() == [0.125, 0.0]
    assert batch.seeds.tolist() == [2**63 - 1, 0]
    assert batch.positions.tolist() == [10, 2**40]
    assert not batch.greedy
    assert batch.filtered
    assert batch.max_top_k == 3
    assert batch.sampled.tolist() == [0]


@pytest.mark.parametrize(
    ("params", "greedy", "filtered"),
    [
        ([SamplingParams()], True, False),
        ([SamplingParams(temperature=1.0)], False, False),
        ([SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_p=0.9)], False, True),
        ([SamplingParams(temperature=1.0, min_p=0.1)], False, True),
        ([SamplingParams(temperature=1.0, top_k=1)], False, True),
    ],
)
def test_the_host_knows_what_can_be_skipped(params, greedy, filtered):
    batch = sampling_batch(params, [0] * len(params))
    assert (batch.greedy, batch.filtered) == (greedy, filtered)
    assert batch.sampled is None


def test_the_token_after_a_node_is_decided_at_the_next_position():
    batch = sampling_batch([SamplingParams(), SamplingParams()], [5, 9])
    assert batch.decided(torch.tensor([[0, 1, 1], [0, 1, 2]])).tolist() == [[6, 7, 7], [10, 11, 12]]


def test_positions_must_be_as_many_as_requests():
    with pytest.raises(ValueError, match="zip"):
        sampling_batch([SamplingParams()], [1, 2])
