"""Carrying a plan out: every system in its turn, each turn kept once it is finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

from dflash_core.bench import meters
from dflash_core.bench.level import Level
from dflash_core.bench.plan import Plan, Turn, turns
from dflash_core.bench.runfile import RunFile, TurnResult
from dflash_core.bench.systems.base import Job, System
from dflash_core.errors import DFlashError

WARM_UP_TOKENS = 16

OnTurn = Callable[[Turn, TurnResult | None], None]


def carry_out(
    plan: Plan,
    systems: Mapping[str, System],
    keep: RunFile,
    *,
    warm_up: int = 1,
    on_turn: OnTurn = lambda turn, result: None,
) -> None:
    """Run every turn that the run file does not have.

    Args:
        systems: by label.
        warm_up: requests that each system answers before a level, for nobody's record.
        on_turn: told before a turn (with `None`) and after it.

    Raises:
        DFlashError: a system can answer nothing at all, already in its warm-up.
    """
    done = {result.key for result in keep.done}
    opened: set[str] = set()
    level: Level | None = None
    for turn in turns(plan):
        if turn.key in done:
            continue
        if turn.level != level:
            level, opened = turn.level, set()
        system = systems[turn.system]
        on_turn(turn, None)
        if turn.system not in opened:
            opened.add(turn.system)
            system.open(turn.level.concurrency)
            warm(turn.system, system, plan, warm_up)
        result = measure(turn, system)
        keep.add(result)
        on_turn(turn, result)


def warm(label: str, system: System, plan: Plan, count: int) -> None:
    """A few short answers, so that nobody pays for the first calls of a process.

    Raises:
        DFlashError: none of them was answered.
    """
    tokens = min(WARM_UP_TOKENS, plan.max_new_tokens)
    jobs = [Job(plan.asks[i % len(plan.asks)], 0, plan.seed, tokens) for i in range(count)]
    answers = system.serve(jobs) if jobs else []
    if answers and all(answer.error for answer in answers):
        raise DFlashError(f"System {label!r} answers nothing. The first error: {answers[0].error}")


def measure(turn: Turn, system: System) -> TurnResult:
    """One turn, with the energy and memory of this machine where the system runs on it."""
    meters.begin_memory()
    gpus = meters.uses_gpus() or not system.in_process
    before, begin = meters.read_energy(gpus=gpus), perf_counter()
    answers = system.serve(turn.jobs)
    spent = perf_counter() - begin
    joules = meters.read_energy(gpus=gpus).since(before) if system.local else None
    memory = meters.read_memory() if system.in_process else None
    ends = [answer.issued + (answer.end or 0.0) for answer in answers]
    # What a system does before the first request (tokenizing, threads) and after the last token is not
    # a user's time; where nothing was answered the whole call is all there is.
    seconds = max(ends) if any(ends) else spent
    order = {(job.ask.id, job.repeat): place for place, job in enumerate(turn.jobs)}
    ordered = sorted(answers, key=lambda answer: order[answer.ask, answer.repeat])
    return TurnResult(
        turn.level.label,
        turn.round,
        turn.system,
        seconds,
        tuple(ordered),
        joules,
        memory,
    )
