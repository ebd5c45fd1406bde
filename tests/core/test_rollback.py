"""Rollback plans: what stays where it is, what moves, and what is refused."""

import pytest
import torch

from dflash_core.errors import UnsupportedError
from dflash_core.rollback.checkpoint import CheckpointRollback
from dflash_core.rollback.crop import CropRollback
from dflash_core.rollback.gather import GatherRollback
from dflash_core.rollback.replay import ReplayRollback
from dflash_core.tree import chain, from_parents
from dflash_core.verify.greedy import follow

CHAIN = chain(torch.tensor([[5, 1, 2], [6, 3, 4]]), torch.tensor([3, 2]))
TREE = from_parents(
    torch.tensor([[5, 1, 2, 3, 4], [6, 1, 2, 0, 0]]),
    torch.tensor([[-1, 0, 0, 1, 2], [-1, 0, 0, -1, -1]]),
    torch.tensor([5, 3]),
    max_depth=2,
)
ON_CHAIN = follow(CHAIN, torch.tensor([[1, 9, 9], [9, 9, 9]]))
ON_TREE = follow(TREE, torch.tensor([[2, 9, 4, 9, 7], [9, 9, 9, 9, 9]]))


def keep(verdict):
    return (verdict.accepted + 1).tolist()


@pytest.mark.parametrize(
    ("policy", "recording", "recurrent"),
    [
        (CropRollback(), "none", "none"),
        (GatherRollback(), "none", "none"),
        (ReplayRollback(), "replay", "replay"),
        (CheckpointRollback(), "checkpoint", "checkpoint"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_on_a_chain_nothing_moves(policy, recording, recurrent):
    assert policy.recording == recording
    plan = policy.plan(CHAIN, ON_CHAIN, keep(ON_CHAIN))
    assert plan.keep == [2, 1]
    assert plan.gather is None
    assert plan.recurrent == recurrent


def test_a_trees_accepted_path_is_gathered():
    plan = GatherRollback().plan(TREE, ON_TREE, keep(ON_TREE))
    assert plan.keep == [3, 1]
    assert plan.gather.tolist() == [[0, 2, 4], [0, -1, -1]]
    assert plan.recurrent == "none"


def test_gathered_slots_hold_the_committed_tokens():
    plan = GatherRollback().plan(TREE, ON_TREE, keep(ON_TREE))
    slots = TREE.tokens.gather(1, plan.gather.clamp(min=0))
    assert slots[0, :3].tolist() == [5, *ON_TREE.tokens[0, :2].tolist()]
    assert slots[1, :1].tolist() == [6]


@pytest.mark.parametrize(
    ("policy", "advice"),
    [
        (CropRollback(), 'use "gather"'),
        (ReplayRollback(), "leave tree_budget out"),
        (CheckpointRollback(), "leave tree_budget out"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_what_cannot_follow_a_tree_says_why(policy, advice):
    with pytest.raises(UnsupportedError, match=f'"{policy.name}".*{advice}'):
        policy.plan(TREE, ON_TREE, keep(ON_TREE))
