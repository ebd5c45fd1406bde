"""Answers and turns of benchmarks that nobody ran."""

from dflash_core.bench.answer import Answer, drafting_of
from dflash_core.bench.runfile import TurnResult


def answer(ask, *, first=0.1, pace=0.01, count=8, repeat=0, tokens=(), text=None, lengths=None):
    """One token after `first` seconds, then one every `pace`; the ids 0, 1, ... unless others are given."""
    return Answer(
        ask=ask,
        repeat=repeat,
        issued=0.0,
        deliveries=tuple((round(first + pace * place, 6), 1) for place in range(count)),
        new_tokens=count,
        tokens=tuple(range(count)) if tokens == () else tokens,
        text=text,
        drafting=None if lengths is None else drafting_of(lengths),
    )


def turn(system, round, answers, *, level="1 at once", seconds=1.0, joules=None):
    """A turn of these answers."""
    return TurnResult(level, round, system, seconds, tuple(answers), joules)
