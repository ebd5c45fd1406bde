"""The automatic schedule finds the best verify length, and costs next to nothing where no draft pays."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from dflash_core.schedule.acceptance import RankCounts, expected_tokens
from dflash_core.schedule.auto import DRAFT_DOES_NOT_PAY, AutoSchedule
from dflash_core.schedule.base import RequestView
from dflash_core.schedule.cost import CycleCost, interpolate
from dflash_core.schedule.fixed import LAST_TOKEN, FixedSchedule, plan_lengths
from dflash_core.stats import PhaseSeconds


def view(
    id: int = 0,
    remaining: int = 1000,
    block: int = 8,
    length: int | str = "auto",
    tree: int | str | None = None,
):
    return RequestView(id, 100, remaining, block, length, tree)


class World:
    """A machine and a draft: forwards cost `forward(rows)`, each draft is accepted with `rates[depth]`."""

    def __init__(
        self,
        forward: Callable[[int], float],
        draft: float,
        rates: list[float],
        calibrated: bool,
        noise: float = 0.1,
    ) -> None:
        self.forward, self.draft, self.rates, self.noise = forward, draft, rates, noise
        self.random = random.Random(7)
        self.calibrated = calibrated

    def forward_seconds(self, rows: int) -> float | None:
        return self.forward(rows) if self.calibrated else None

    def run(self, schedule, cycles: int, batch: int = 1, block: int = 8) -> tuple[float, list[int]]:
        """Tokens a second of the run, and the verify length of every cycle."""
        tokens, seconds, lengths = 0, 0.0, []
        for cycle in range(cycles):
            views = [replace(view(id, block=block), context=100 + cycle) for id in range(batch)]
            plan = schedule.plan(views)
            accepted = [self.accept(length - 1) for length in plan.verify_lengths]
            jitter = 1 + self.noise * self.random.random()
            verify = self.forward(batch * max(plan.verify_lengths)) * jitter
            spent = PhaseSeconds(draft=self.draft if plan.drafts else 1e-5, verify=verify, commit=5e-4)
            schedule.observe(views, plan, [range(1, count + 1) for count in accepted], spent)
            tokens += sum(accepted) + batch
            seconds += spent.decode
            lengths.append(plan.verify_lengths[0])
        return tokens / seconds, lengths

    def accept(self, depth: int) -> int:
        for slot in range(depth):
            if self.random.random() >= self.rates[slot]:
                return slot
        return depth


def best_fixed(world: World, block: int = 8, batch: int = 1) -> tuple[int, float]:
    """The length with the highest expected rate, computed from the world's true figures."""
    rates = {}
    for length in range(1, block + 1):
        survival, tokens = 1.0, 1.0
        for slot in range(length - 1):
            survival *= world.rates[slot]
            tokens += survival
        seconds = world.forward(batch * length) + (world.draft if length > 1 else 0)
        rates[length] = batch * tokens / seconds
    best = max(rates, key=rates.__getitem__)
    return best, rates[best]


def flat_then_steep(rows: int) -> float:
    return 0.035 if rows <= 4 else 0.035 + 0.004 * (rows - 4)


@pytest.mark.parametrize("calibrated", [True, False], ids=["calibrated", "learning"])
@pytest.mark.parametrize(
    ("forward", "rates"),
    [
        (flat_then_steep, [0.55] * 7),
        (lambda rows: 0.03 + 0.0005 * rows, [0.8] * 7),
        (lambda rows: 0.02 + 0.015 * rows, [0.9, 0.9, 0.3, 0.2, 0.2, 0.1, 0.1]),
    ],
    ids=["four rows for free", "nearly flat", "steep"],
)
def test_reaches_nearly_the_best_fixed_length(forward, rates, calibrated):
    world = World(forward, 0.008, rates, calibrated)
    reached, _ = world.run(AutoSchedule(world), cycles=1500)
    _, best = best_fixed(world)
    assert reached > 0.9 * best / 1.05  # 1.05: the mean of the jitter


@pytest.mark.parametrize("calibrated", [True, False], ids=["calibrated", "learning"])
def test_a_useless_draft_costs_less_than_three_percent(calibrated):
    world = World(lambda rows: 0.02 + 0.01 * rows, 0.01, [0.05] * 7, calibrated, noise=0.0)
    reached, lengths = world.run(AutoSchedule(world), cycles=600)
    plain = 1 / (world.forward(1) + 5e-4)
    assert reached > 0.97 * plain
    assert lengths.count(1) > 550


def test_a_draft_that_becomes_useful_is_found_again():
    world = World(flat_then_steep, 0.008, [0.02] * 7, calibrated=True)
    schedule = AutoSchedule(world)
    world.run(schedule, cycles=400)
    world.rates = [0.8] * 7
    _, lengths = world.run(schedule, cycles=600)
    assert lengths[-1] > 3


def test_verifies_less_a_request_when_many_share_the_machine():
    world = World(lambda rows: 0.02 + 0.004 * rows, 0.01, [0.6] * 7, calibrated=True)
    _, alone = world.run(AutoSchedule(world), cycles=300)
    _, crowded = world.run(AutoSchedule(world), cycles=300, batch=8)
    assert sum(crowded[-100:]) < sum(alone[-100:])


def test_chooses_the_size_of_trees_where_they_are_allowed():
    """Ranks 1 to 3 pay here, later ones do not; the fourth draft of a chain would."""
    schedule = AutoSchedule(None, None)
    views = [view(tree="auto"), view(1, tree=None)]
    for cycle in range(300):
        views = [replace(each, context=100 + cycle) for each in views]
        plan = schedule.plan(views)
        nodes = max(plan.tree_budgets[0] or 0, plan.verify_lengths[0] - 1)
        kept = [[rank for rank in (2,) if rank <= nodes], [rank for rank in (1, 2) if rank <= nodes]]
        verify = 1.0 + 0.01 * nodes + 0.4 * max(0, nodes - 3)
        schedule.observe(views, plan, kept, PhaseSeconds(draft=0.1, verify=verify, commit=0.01))
    seen = set()
    for _ in range(4):
        plan = schedule.plan(views)
        seen.add(plan.tree_budgets)
        assert plan.tree_budgets[1] is None
    assert seen <= {(2, None), (3, None), (None, None)}
    assert (2, None) in seen or (3, None) in seen


def test_a_tree_is_chosen_only_where_the_length_is_left_open_too():
    schedule = AutoSchedule(None, None)
    plan = schedule.plan([view(length=5, tree="auto"), view(1, length="block", tree="auto")])
    assert plan.tree_budgets == (None, None)
    assert plan.verify_lengths == (5, 8)
    assert FixedSchedule().plan([view(tree="auto")]).tree_budgets == (None,)
    beside = [view(length=5, tree="auto"), view(1, tree="auto")]
    assert schedule.plan(beside).tree_budgets == (None, 7)


def test_says_why_it_decodes_plainly():
    world = World(lambda rows: 0.05 * rows, 0.5, [0.1] * 7, calibrated=True)
    schedule = AutoSchedule(world)
    world.run(schedule, cycles=5)
    plan = schedule.plan([view()])
    assert plan.verify_lengths == (1,)
    assert plan.reasons == (DRAFT_DOES_NOT_PAY,)
    assert not plan.drafts


def test_requests_that_ask_get_what_they_ask_for():
    world = World(lambda rows: 0.05 * rows, 0.5, [0.1] * 7, calibrated=True)
    schedule = AutoSchedule(world)
    world.run(schedule, cycles=5)
    plan = schedule.plan([view(0, length=3), view(1, length="block"), view(2, tree=16), view(3)])
    assert plan.verify_lengths[:3] == (3, 8, 8)
    assert plan.tree_budgets == (None, None, 16, None)


def test_a_block_shrinks_to_what_is_left():
    plan = FixedSchedule().plan([view(remaining=r, length="block") for r in (1, 2, 3, 7, 8, 100)])
    assert plan.block_sizes == (1, 3, 4, 8, 8, 8)
    assert plan.verify_lengths == (1, 2, 3, 7, 8, 8)
    assert plan.reasons[0] == LAST_TOKEN


def test_a_length_never_exceeds_the_block():
    assert plan_lengths([view(block=4)], [9]).verify_lengths == (4,)


def test_an_outlier_moves_an_estimate_little():
    cost = CycleCost(lambda rows: None)
    for _ in range(10):
        cost.observe(1, 0.03, None, 0.0)
        cost.observe(8, 0.06, 0.01, 0.0)
    before = cost.cycle(8, drafts=True)
    cost.observe(8, 6.0, 0.01, 0.0)
    assert cost.cycle(8, drafts=True) < 1.06 * before


def test_interpolation_goes_through_and_beyond_the_points():
    known = {1: 1.0, 8: 8.0}
    assert interpolate(known, 1) == 1.0
    assert interpolate(known, 4) == pytest.approx(4.0)
    assert interpolate(known, 16) == pytest.approx(16.0)
    assert interpolate({4: 2.0, 8: 1.0}, 16) == 1.0


def test_expected_tokens_follow_what_was_seen():
    counts = RankCounts()
    for _ in range(2000):
        counts.observe([1], 3)
    expected = expected_tokens(counts, None, 3)
    assert expected[0] == 1
    assert expected[1] == pytest.approx(2, abs=0.05)
    assert expected[3] == pytest.approx(expected[1], abs=0.1)


def test_what_was_seen_outweighs_a_calibration_that_is_wrong():
    cost = CycleCost(lambda rows: 1.0 + rows)  # says that four rows cost two and a half times as much as one
    for _ in range(4):
        cost.observe(1, 1.0, None, 0.0)
        cost.observe(4, 1.1, 0.1, 0.0)
    assert cost.cycle(1, drafts=False) == pytest.approx(1.0)
    assert cost.cycle(4, drafts=True) == pytest.approx(1.2)


def test_plain_decoding_is_looked_at_now_and_then():
    """Else nobody would notice that it has become the faster way."""
    schedule = AutoSchedule(None, None)
    lengths = []
    for cycle in range(200):
        views = [RequestView(0, cycle, 500, 8, "auto", None)]
        plan = schedule.plan(views)
        lengths.append(plan.verify_lengths[0])
        accepted = [range(1, lengths[-1])]
        schedule.observe(views, plan, accepted, PhaseSeconds(draft=0.1, verify=1.0, commit=0.01))
    tail = lengths[60:]
    assert 2 <= tail.count(1) <= 4
    assert set(tail) == {1, 8}
