"""What the SGLang adapter translates, without SGLang: trees and verdicts, requests, penalties."""

from array import array
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_backends.sglang.layout import full_mask, kept_by, links, nodes_of
from dflash_backends.sglang.metrics import counts
from dflash_backends.sglang.options import export
from dflash_backends.sglang.penalties import counted, custom, not_before, penalties_of, repeated
from dflash_backends.sglang.requests import NO_TOP_K, sampling_of, seed_of, view_of
from dflash_backends.sglang.target import tap_order
from dflash_core.errors import SettingsError
from dflash_core.processors import apply_processors
from dflash_core.schedule.base import CyclePlan
from dflash_core.settings import Settings, resolve
from dflash_core.tree import chain, from_parents
from dflash_core.verdict import Verdict


def tree_of(parents, tokens=None):
    """Ragged trees from lists of parents."""
    width = max(map(len, parents))
    counts = torch.tensor([len(row) for row in parents])
    padded = torch.tensor([row + [-1] * (width - len(row)) for row in parents])
    tokens = torch.arange(padded.numel()).view(padded.shape) if tokens is None else tokens
    return from_parents(tokens, padded, counts, max_depth=width)


TREES = [[-1, 0, 0, 1, 1, 2], [-1, 0], [-1, 0, 1, 2]]


@pytest.mark.parametrize("width", [6, 9])
def test_every_node_sees_its_request_and_its_ancestors(width):
    lengths = [3, 0, 7]
    nodes = nodes_of(tree_of(TREES), torch.tensor(lengths), lengths, width)
    begin = 0
    for parents, length in zip(TREES, lengths, strict=True):
        block = nodes.mask[begin : begin + width * (length + width)].view(width, length + width)
        begin += block.numel()
        assert block[:, :length].all()
        for node in range(width):
            seen, at = {node}, node
            while node < len(parents) and parents[at] >= 0:
                at = parents[at]
                seen.add(at)
            assert set(block[node, length:].nonzero()[:, 0].tolist()) == seen
    assert begin == len(nodes.mask)


def test_a_node_is_as_far_from_the_anchor_as_it_is_deep():
    nodes = nodes_of(tree_of(TREES), torch.tensor([3, 0, 7]), [3, 0, 7], 6)
    depths = [[0, 1, 1, 2, 2, 2], [0, 1, 0, 0, 0, 0], [0, 1, 2, 3, 0, 0]]
    expected = [[length + depth for depth in row] for length, row in zip([3, 0, 7], depths, strict=True)]
    assert nodes.positions.view(3, 6).tolist() == expected


def test_a_chain_needs_no_mask():
    tree = chain(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([3, 2]))
    nodes = nodes_of(tree, torch.tensor([4, 2]), [4, 2], 4)
    assert nodes.mask is None
    assert nodes.tokens.view(2, 4).tolist() == [[5, 6, 7, 0], [8, 9, 0, 0]]
    assert nodes.positions.view(2, 4).tolist() == [[4, 5, 6, 7], [2, 3, 4, 5]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 5), st.integers(0, 99))
def test_the_flat_mask_is_what_a_loop_makes(lengths, width, seed):
    generator = torch.Generator().manual_seed(seed)
    visible = torch.rand(len(lengths), width, width, generator=generator) < 0.5
    parts = [
        torch.cat([torch.ones(width, length, dtype=torch.bool), visible[row]], 1).flatten()
        for row, length in enumerate(lengths)
    ]
    assert torch.equal(full_mask(visible, torch.tensor(lengths), lengths), torch.cat(parts))


def test_accepted_nodes_move_to_the_front_of_their_window():
    verdict = Verdict(
        accepted=torch.tensor([2, 0]),
        nodes=torch.tensor([[0, 2, 5, -1], [0, -1, -1, -1]]),
        tokens=torch.tensor([[7, 8, 9, -1], [4, -1, -1, -1]]),
    )
    window = torch.tensor([[10, 11, 12, 13, 14, 15], [20, 21, 22, 23, 24, 25]])
    kept = kept_by(verdict, window, torch.tensor([[100], [50]]) + torch.arange(6))
    assert kept.target.tolist() == [10, 11, 12, 0, 20, 0, 0, 0]  # slot 0 is nobody's
    real = kept.target > 0
    assert window.flatten()[kept.rows][real].tolist() == [10, 12, 15, 20]
    assert kept.rows[real].tolist() == [0, 2, 5, 6]
    assert kept.positions[real].tolist() == [100, 101, 102, 50]


def test_links_lead_through_all_children():
    tree = tree_of(TREES)
    child, sibling = links(tree.parents, tree.num_nodes)
    for row, parents in enumerate(TREES):
        for node in range(len(parents)):
            found, at = [], int(child[row, node])
            while at >= 0:
                found.append(at)
                at = int(sibling[row, at])
            assert found == [other for other, parent in enumerate(parents) if parent == node]


def test_taps_come_in_the_order_that_the_draft_was_trained_with():
    captured = torch.tensor([[1.0, 1.5, 2.0, 2.5, 9.0, 9.5]])  # of blocks 1, 2, 9, two wide
    order = tap_order((9, 1, 2), 2, torch.device("cpu"))
    assert captured.index_select(1, order).tolist() == [[9.0, 9.5, 1.0, 1.5, 2.0, 2.5]]
    assert tap_order((1, 2, 9), 2, torch.device("cpu")) is None


def request(output=(), rid="a", **params):
    defaults = {
        **{"temperature": 1.0, "top_k": NO_TOP_K, "top_p": 1.0, "min_p": 0.0, "sampling_seed": None},
        **{"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0},
        **{"min_new_tokens": 0, "max_new_tokens": 10, "stop_token_ids": {3}},
    }
    tokenizer = SimpleNamespace(additional_stop_token_ids=None, eos_token_id=2)
    return SimpleNamespace(
        sampling_params=SimpleNamespace(**{**defaults, **params}),
        output_ids=list(output),
        rid=rid,
        eos_token_ids={4},
        tokenizer=tokenizer,
    )


def test_settings_of_a_request():
    sampled = sampling_of(request(temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, sampling_seed=5), 1)
    assert (sampled.temperature, sampled.top_k, sampled.top_p, sampled.min_p) == (0.7, 40, 0.9, 0.1)
    assert sampled.seed == 5
    assert sampling_of(request(), 1).top_k == 0
    assert sampling_of(request(top_k=1), 1).temperature == 0  # how SGLang writes temperature 0


def test_requests_without_a_seed_have_one_of_their_own_that_all_ranks_agree_on():
    seeds = {seed_of(None, name, server) for name in "abc" for server in (1, 2)}
    assert len(seeds) == 6
    assert seed_of(None, "a", 1) == seed_of(None, "a", 1)


def test_a_schedule_is_told_how_much_is_left():
    view = view_of(request(output=[1, 2, 3]), 20, 8, Settings(tree_budget=16, verify_length=4))
    assert (view.context, view.remaining, view.block_size) == (20, 7, 8)
    assert (view.verify_length, view.tree_budget) == (4, 16)


def test_penalties_are_those_of_what_was_produced():
    produced = torch.tensor([[1, 1, 2], [0, 3, 3]])
    scores = torch.tensor([[1.0, 2.0, -3.0, 4.0]]).repeat(2, 1)
    assert counted(0.5, 0.25)(produced, scores).tolist() == [[1, 0.75, -3.75, 4], [0.25, 2, -3, 2.75]]
    assert repeated(2.0)(produced, scores).tolist() == [[1, 1, -6, 4], [0.5, 2, -3, 2]]
    held = not_before(4, [2])(produced, scores.clone())
    assert held[:, 2].tolist() == [float("-inf")] * 2
    assert not_before(3, [2])(produced, scores.clone())[:, 2].tolist() == [-3, -3]


def test_a_cycle_is_counted_by_what_was_drafted_looked_at_and_kept():
    plan = CyclePlan((8, 8, 1), (4, 8, 1), (None, 16, None), (None, None, "one token left"))
    assert counts(plan, [2, 3, 0]) == {
        **{"cycles": 1, "drafted_tokens": 14, "verified_nodes": 19, "accepted_tokens": 5, "plain_tokens": 1}
    }


def test_settings_for_an_engine_started_from_python_reach_its_processes(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("DFLASH_TREE_BUDGET", "DFLASH_BLOCK_DIFFUSION"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    export(tree_budget=16, block_diffusion=True, proposal=None)
    found = resolve()
    assert (found.settings.tree_budget, found.origins["tree_budget"]) == (16, "DFLASH_TREE_BUDGET")
    assert found.settings.block_diffusion
    with pytest.raises(SettingsError, match="Did you mean"):
        export(tree_buget=3)


def test_a_request_without_penalties_has_no_processors():
    assert penalties_of(request()) == ()
    assert penalties_of(request(output=[1, 2], min_new_tokens=2)) == ()
    assert len(penalties_of(request(frequency_penalty=0.1, repetition_penalty=1.1, min_new_tokens=5))) == 3


def test_a_minimum_that_leaves_no_token_is_left_undone():
    """Or a request could end the server: nothing can be chosen where everything is excluded."""
    nothing, scores = torch.zeros(1, 0, dtype=torch.int64), torch.arange(4.0)[None]
    assert torch.equal(not_before(3, [0, 1, 2, 3])(nothing, scores.clone()), scores)
    some = not_before(3, [1, 9])(nothing, scores.clone())
    assert some.tolist() == [[0.0, float("-inf"), 2.0, 3.0]]


@pytest.mark.parametrize("kind", [list, partial(array, "q")])
def test_a_custom_processor_sees_the_request_as_it_would_be_at_every_node(kind):
    seen = {}

    def remember(scores, params):
        for row, one in zip(scores, params, strict=True):
            assert type(one["__req__"].output_ids) is type(own.output_ids)
            seen[tuple(one["__req__"].output_ids)] = (int(row[0]), one["factor"], one["__req__"].rid)
        return scores + 1

    tree = tree_of([[-1, 0, 0, 1]], tokens=torch.tensor([[5, 6, 7, 8]]))
    logits = torch.arange(4.0)[None, :, None].repeat(1, 1, 10)
    own = SimpleNamespace(rid="a", output_ids=kind([4, 5]))
    processor = custom(remember, {"factor": 2, "__req__": own})
    scores = apply_processors(tree, logits, [[4, 5]], [[processor]])
    assert seen == {
        (4, 5): (0, 2, "a"),
        (4, 5, 6): (1, 2, "a"),
        (4, 5, 7): (2, 2, "a"),
        (4, 5, 6, 8): (3, 2, "a"),
    }
    assert torch.equal(scores, logits + 1)
    assert own.output_ids == kind([4, 5])


def test_a_custom_processor_may_have_no_parameters():
    processor = custom(lambda scores, params: scores * (params == [None]), None)
    assert processor(torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 2)).tolist() == [[1.0, 1.0]]
