"""What can be set, and what it means; `resolve` says where the values come from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dflash_kernels.folders import user_cache


def _setting(default: Any, about: str, allowed: str, **limits: Any) -> Any:
    extra: dict[str, Any] = {"allowed": allowed}
    source = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**source, description=about, json_schema_extra=extra, **limits)


MOST = 2**31 - 1
"""The largest count that makes sense anywhere."""

MOST_NODES = 4096
"""Of a tree: each node sees or does not see each other one."""


def _count(default: int | None, about: str, note: str = "", least: int = 1) -> Any:
    return _setting(default, about, f"a whole number from {least}{note}", ge=least, le=MOST)


class Settings(BaseModel):
    """One immutable value of everything that can be set."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    target: str | None = _setting(None, "the model whose output counts", "a path", min_length=1)
    draft: str | None = _setting(None, "the checkpoint of the draft", "a path", min_length=1)
    engine: str = _setting("transformers", "what runs the target", "the name of an engine", min_length=1)
    dtype: Literal["float32", "bfloat16", "float16"] = _setting(
        "float32", "number format of target and draft", "float32, bfloat16 or float16"
    )
    fast: Literal["auto", "off"] = _setting(
        "auto", "linear layers laid out for few rows at a time", "auto or off"
    )
    cache_dir: Annotated[Path, Field(strict=False)] = _setting(
        user_cache, "folder for converted models and measurements of the machine", "a path"
    )

    block_diffusion: bool = _setting(True, "drafting; without it decoding is plain", "true or false")
    drafter: str = _setting("block", "kind of drafter", "the name of a drafter", min_length=1)
    proposal: Literal["auto", "argmax", "sample"] = _setting(
        "auto", "how the draft picks its tokens", "auto, argmax or sample"
    )
    block_size: int | None = _count(
        None, "slots of a block, the anchor included; by default the draft's own", " (1 is plain decoding)"
    )
    draft_window: int | None = _count(
        None, "newest positions of context that the draft sees; by default the checkpoint's"
    )
    draft_vocab: Annotated[int, Field(ge=1)] | Annotated[str, Field(min_length=1)] | None = _setting(
        None,
        "the draft chooses from this many of the lowest token ids, or from those listed in a JSON file; by "
        "default from all",
        "a whole number from 1, or a path",
    )

    schedule: str = _setting("auto", "what plans each cycle", "the name of a schedule", min_length=1)
    verify_length: Literal["auto", "block"] | Annotated[int, Field(ge=1)] = _setting(
        "auto",
        "slots of the block that the target checks, the anchor included",
        "auto, block or a whole number from 1",
    )
    tree_budget: Literal["auto"] | Annotated[int, Field(ge=1, le=MOST_NODES)] | None = _setting(
        "auto",
        "nodes of a token tree besides the anchor; auto leaves it to the schedule",
        "auto, none (a chain) or a whole number from 1 to 4096",
    )
    verifier: str = _setting(
        "sampling", "what decides which drafts stay", "the name of a verifier", min_length=1
    )
    rollback: str = _setting(
        "auto", "how caches drop what was rejected", "auto or the name of a rollback policy", min_length=1
    )
    verification_batch_size: int = _count(8, "blocks verified at once, one a request")

    max_new_tokens: int = _count(256, "most tokens of an answer")
    temperature: float = _setting(0.0, "0 is greedy", "a number from 0", ge=0)
    top_k: int = _count(0, "sample from the k likeliest tokens", " (0 is off)", least=0)
    top_p: float = _setting(
        1.0,
        "sample from the likeliest tokens of this total probability",
        "a number above 0, at most 1 (1 is off)",
        gt=0,
        le=1,
    )
    min_p: float = _setting(
        0.0,
        "least probability, as a share of the likeliest token's",
        "a number from 0 to 1 (0 is off)",
        ge=0,
        le=1,
    )
    seed: int = _setting(
        0,
        "of the first request; the next has the next seed",
        "a whole number from 0 to 2**63 - 1",
        ge=0,
        lt=2**63,
    )

    @property
    def fixed_tree(self) -> int | None:
        """Nodes of the tree that is asked for; `None` when it is left to the schedule, or a chain."""
        return self.tree_budget if isinstance(self.tree_budget, int) else None


ALIASES = {"DFLASH_DRAFT_BLOCK_SIZE": "block_size"}
"""Environment variables that are not `DFLASH_` and the setting's name."""

LATER = {"confidence_threshold": "needs a gate on the confidence of drafts, which this version does not have"}
"""Known names that this version cannot honour, and why."""


def contradictions(settings: Settings) -> list[tuple[str, str, str]]:
    """Pairs of settings that cannot both be meant: the two names and the reason."""
    found = []
    length, block = settings.verify_length, settings.block_size
    if isinstance(length, int) and block is not None and length > block:
        found.append(("verify_length", "block_size", "no more slots can be verified than a block has"))
    if settings.verifier == "greedy" and settings.temperature > 0:
        found.append(("verifier", "temperature", "the greedy verifier does not sample"))
    if settings.fixed_tree is not None and block == 1:
        found.append(
            ("tree_budget", "block_size", "a block of one slot, the anchor, has no drafts to branch")
        )
    return found
