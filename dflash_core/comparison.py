"""The same prompt decoded plainly and speculatively, on the same engine and the same fast path."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dflash_core.drafter.base import Drafter
from dflash_core.generation import GenerateResult, generate
from dflash_core.schedule.base import Schedule
from dflash_core.target import TargetModel

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Comparison:
    """One prompt, both ways. Rates are tokens a second outside the prefill."""

    plain: GenerateResult
    drafted: GenerateResult

    @property
    def identical(self) -> bool:
        """Whether both gave the same tokens. Expected at temperature 0, and with point-mass drafts always."""
        return self.plain.tokens == self.drafted.tokens

    @property
    def plain_tokens_per_second(self) -> float:
        return self.plain.stats.tokens_per_second

    @property
    def tokens_per_second(self) -> float:
        return self.drafted.stats.tokens_per_second

    @property
    def speedup(self) -> float:
        """Drafted over plain tokens a second; 0 when there was nothing to decode after the first token."""
        plain = self.plain_tokens_per_second
        return self.tokens_per_second / plain if plain else 0.0


def compare(
    target: TargetModel,
    draft: Drafter,
    prompt: Sequence[int],
    *,
    schedule: str | Schedule = "auto",
    plain_first: bool = True,
    **options: Any,
) -> Comparison:
    """Decode one prompt both ways.

    Args:
        plain_first: which way goes first; alternate it over prompts, so that a drifting machine favours none.
        options: those of `generate`.
    """
    plain_options = {**options, "verifier": "sampling", "block_size": None, "tree_budget": None}
    plain_options["verify_length"] = "auto"

    def plainly() -> GenerateResult:
        return generate(target, None, prompt, schedule="fixed", **plain_options)

    def drafted() -> GenerateResult:
        return generate(target, draft, prompt, schedule=schedule, **options)

    if plain_first:
        first = plainly()
        return Comparison(plain=first, drafted=drafted())
    second = drafted()
    return Comparison(plain=plainly(), drafted=second)


def warm_up(target: TargetModel, draft: Drafter, prompt: Sequence[int], **options: Any) -> None:
    """Run both ways for a few tokens, so that neither pays for the process's first calls."""
    compare(target, draft, prompt, **{**options, "max_new_tokens": WARM_UP_TOKENS, "on_tokens": None})
