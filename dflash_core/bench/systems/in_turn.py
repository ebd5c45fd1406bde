"""Serving with something that answers one request at a time."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter, sleep

from dflash_core.bench.answer import Answer
from dflash_core.bench.systems.base import Job
from dflash_core.errors import RequestError


def serve_in_turn(
    jobs: Sequence[Job],
    at_once: int | None,
    respond: Callable[[Job], Answer],
    clock: Callable[[], float] = perf_counter,
    wait: Callable[[float], None] = sleep,
) -> list[Answer]:
    """Answer jobs first come, first served; waiting for those before counts as latency.

    Args:
        at_once: users in a closed loop. Each asks again once it is answered, so request i is asked for when
            request `i - at_once` has been answered.
        respond: gives an answer whose deliveries count from the call.
    """
    start, answers, ends = clock(), [], list[float]()
    for index, job in enumerate(jobs):
        if job.arrival is None:
            before = index - (at_once or 1)
            issued = 0.0 if before < 0 else ends[before]
        else:
            issued = job.arrival
            wait(max(0.0, issued - (clock() - start)))
        begun = clock() - start
        try:
            answer = respond(job)
        except RequestError as error:
            answer = Answer(job.ask.id, job.repeat, issued, error=str(error))
        late = begun - issued
        deliveries = tuple((when + late, count) for when, count in answer.deliveries)
        answers.append(replace(answer, issued=issued, deliveries=deliveries))
        ends.append(clock() - start)
    return answers
