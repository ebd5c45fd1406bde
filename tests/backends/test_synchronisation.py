"""A cycle reads its verdict once; nothing else in it makes the host wait for the device.

On a GPU each operation listed here stops the host until all work before it is done. A CPU shows which of
them would be called, so the count is the same.
"""

import pytest
import torch
from tiny_drafts import tiny_draft
from tiny_targets import VOCABULARY, prompts, tiny_target
from torch.utils._python_dispatch import TorchDispatchMode

import dflash_core.decoder
from dflash_core.generation import build_decoder
from dflash_core.request import Request
from dflash_core.sampling import SamplingParams

WAITING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::unique",
    "aten::_unique2",
    "aten::is_nonzero",
    "aten::equal",
    "aten::repeat_interleave.Tensor",
}
"""Operations whose result's value or shape the host must know."""


class Waits(TorchDispatchMode):
    """Lists calls that would wait."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        boolean_index = name == "aten::index" and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if name in WAITING or f"{name}.{func._overloadname}" in WAITING or boolean_index:
            self.calls.append(name)
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def target():
    return tiny_target("llama")


@pytest.fixture
def reads(monkeypatch):
    """Counts how often a verdict is brought to the host."""
    count = [0]
    real = dflash_core.decoder.read

    def counted(*arguments):
        count[0] += 1
        return real(*arguments)

    monkeypatch.setattr("dflash_core.decoder.read", counted)
    return count


@pytest.mark.parametrize("kind", [{}, {"second": True}, {"spark": True}], ids=["v1", "v2", "spark"])
@pytest.mark.parametrize("tree_budget", [None, 9])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5, "top_p": 0.9}])
def test_a_cycle_waits_once(target, reads, monkeypatch, kind, tree_budget, temperature, filters):
    monkeypatch.setattr("dflash_kernels.sampling_probs.reference.may_look", lambda x: False)
    decoder = build_decoder(target, tiny_draft(target, **kind), schedule="fixed")
    sampling = SamplingParams(temperature, seed=3, **filters)
    for text in prompts(9, 4, 6):
        decoder.add(Request(tuple(text), 40, sampling=sampling, tree_budget=tree_budget))
    decoder.step()
    reads[0] = 0
    with Waits() as waits:
        for _ in range(3):
            decoder.step()
    assert waits.calls == []
    assert reads[0] == 3


def test_the_count_sees_a_wait():
    with Waits() as waits:
        float(torch.arange(VOCABULARY).sum())
        torch.arange(5)[torch.arange(5) > 2]
    assert len(waits.calls) >= 2
