"""Whether a draft fits a target."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from dflash_core.checkpoint.body import TAP_HINT
from dflash_core.checkpoint.keys import show
from dflash_core.errors import PairError
from dflash_core.spec import DraftSpec, RopeSpec


@dataclass(frozen=True)
class Finding:
    """Something wrong (`error`) or doubtful (`warning`) about `where`, a file or a pair."""

    level: Literal["error", "warning"]
    where: str
    message: str


class TargetFacts(Protocol):
    """What the check needs to know of a target; `dflash_core.target.TargetInfo` has it all."""

    @property
    def name(self) -> str: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def rope(self) -> RopeSpec | None: ...


def check_pair(spec: DraftSpec, info: TargetFacts, *, allow_rope_mismatch: bool = False) -> None:
    """Raise unless a draft fits a target.

    Args:
        allow_rope_mismatch: accept a draft that was trained with another RoPE than the target's.

    Raises:
        PairError: sizes, vocabulary, taps, mask token or RoPE do not fit; the message lists what.
    """
    wrong = [*_misfits(spec, info), *(() if allow_rope_mismatch else _rope_misfits(spec, info))]
    if wrong:
        raise PairError(f"The draft does not fit {info.name}: {' '.join(wrong)}")


def pair_findings(spec: DraftSpec, target: TargetFacts) -> list[Finding]:
    """All that `check_pair` would raise about, and what is merely doubtful."""
    errors = (*_misfits(spec, target), *_rope_misfits(spec, target))
    return [
        *(Finding("error", target.name, problem) for problem in errors),
        *(Finding("warning", target.name, doubt) for doubt in _doubts(spec, target)),
    ]


def _misfits(spec: DraftSpec, target: TargetFacts) -> Iterator[str]:
    if spec.vocab_size != target.vocab_size:
        yield f"vocab_size is {spec.vocab_size} in the draft and {target.vocab_size} in the target."
    if (mask := spec.mask_token_id) >= target.vocab_size:
        yield f"mask_token_id is {mask}, but the target's tokens are 0 to {target.vocab_size - 1}."
    if (width := spec.target_hidden_size or spec.hidden_size) != target.hidden_size:
        yield f"hidden_size is {width} where the draft reads taps and {target.hidden_size} in the target."
    elif spec.hidden_size != width and not (spec.owns_embedding and spec.owns_head):
        yield f"hidden_size is {spec.hidden_size} in the draft: too different to borrow embedding and head."
    if not all(tap < target.num_layers for tap in spec.taps):
        yield (
            f"target_layer_ids is {show([*spec.taps])}, but the target has {target.num_layers} layers "
            f"(0 to {target.num_layers - 1}). {TAP_HINT}"
        )
    if spec.num_target_layers not in (None, target.num_layers):
        yield f"num_target_layers is {spec.num_target_layers}, but the target has {target.num_layers}."


def _rope_misfits(spec: DraftSpec, target: TargetFacts) -> Iterator[str]:
    if target.rope is not None and not same_rope(spec.rope, target.rope):
        yield (
            f"RoPE is {describe_rope(spec.rope)} in the draft and {describe_rope(target.rope)} in the "
            "target. If the draft was trained so, allow the mismatch; if the target's context was extended, "
            "extend the draft's alike."
        )


def _doubts(spec: DraftSpec, target: TargetFacts) -> Iterator[str]:
    if spec.num_target_layers is None and target.num_layers - 1 in spec.taps:
        yield f"target_layer_ids is {show([*spec.taps])}: drafts rarely read the last block. {TAP_HINT}"
    if (longest := spec.max_position_embeddings) < target.max_positions:
        yield (
            f"max_position_embeddings is {longest} in the draft and {target.max_positions} in the target; "
            "fewer drafts may be accepted beyond the draft's."
        )


def same_rope(left: RopeSpec, right: RopeSpec) -> bool:
    """Whether two rotary embeddings turn positions into the same angles."""
    left, right = _plain(left), _plain(right)
    exact = ("kind", "original_max_position_embeddings", "truncate")
    close = ("theta", "factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    return all(getattr(left, name) == getattr(right, name) for name in exact) and all(
        _close(getattr(left, name), getattr(right, name)) for name in close
    )


def describe_rope(rope: RopeSpec) -> str:
    """In words: theta, and kind and factor of a scaling."""
    if rope.kind == "default":
        return f"theta {rope.theta:g}"
    original = f" from {rope.original_max_position_embeddings} positions" if rope.kind == "yarn" else ""
    return f"theta {rope.theta:g}, {rope.kind} x {rope.factor:g}{original}"


def _plain(rope: RopeSpec) -> RopeSpec:
    """Without the fields that its kind does not use."""
    if rope.kind == "default" or (rope.kind == "linear" and rope.factor == 1.0):
        return RopeSpec(theta=rope.theta)
    if rope.kind == "linear":
        return RopeSpec(theta=rope.theta, kind="linear", factor=rope.factor)
    return replace(rope, mscale=rope.mscale or None, mscale_all_dim=rope.mscale_all_dim or None)


def _close(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return math.isclose(left, right, rel_tol=1e-6)
