"""What a cycle costs outside the two models' forwards.

    python benchmarks/overhead.py --batches 1 8

Clocks are put around the target's forward and around the draft's network, head and context projection; the
rest of a cycle (planning, masks and slot tables, trees, verdict, commit, statistics) is the overhead.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter
from typing import Any

import dflash_core
from dflash_core.bench.prompts import load_prompts
from dflash_core.demo import TARGET, draft_folder
from dflash_core.generation import generate


class Clock:
    """Sums the seconds spent in the functions it wraps; calls within calls count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            begin = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += perf_counter() - begin

        return timed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--verify-length", type=int, default=4)
    parser.add_argument("--tree-budget", type=int, default=None)
    parser.add_argument("--fast", default="auto")
    arguments = parser.parse_args()

    target = dflash_core.load_target(TARGET, fast=arguments.fast)
    draft = dflash_core.load_draft(draft_folder(), target)
    clock = Clock()
    target.model.forward = clock.around(target.model.forward)
    for part in ("context_features", "context_kv", "forward"):
        setattr(draft.network, part, clock.around(getattr(draft.network, part)))
    draft.head.forward = clock.around(draft.head.forward)
    prompts = [target.encode_chat(messages) for messages in load_prompts("gsm8k", 8)]
    for batch in arguments.batches:
        for repeat in range(3):
            clock.seconds = 0.0
            result = generate(
                target,
                draft,
                prompts[:batch],
                max_new_tokens=arguments.new_tokens,
                eos_token_id=[],
                verify_length=arguments.verify_length,
                tree_budget=arguments.tree_budget,
                max_batch=batch,
            )
            seconds = result.stats.seconds
            models = clock.seconds
            total = seconds.decode + seconds.prefill
            print(
                f"batch {batch} run {repeat}: {result.stats.cycles} cycles of "
                f"{1e3 * seconds.decode / result.stats.cycles:.1f} ms; outside the models "
                f"{1e3 * (total - models) / result.stats.cycles:.2f} ms, {(total - models) / total:.1%} "
                f"(plan {seconds.plan:.3f} s, draft {seconds.draft:.3f}, verify {seconds.verify:.3f}, "
                f"commit {seconds.commit:.3f})"
            )


if __name__ == "__main__":
    main()
