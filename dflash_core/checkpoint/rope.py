"""RoPE in a config: `rope_theta` with `rope_scaling`, or transformers 5's `rope_parameters`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dflash_core.checkpoint.keys import Keys, show
from dflash_core.errors import CheckpointError
from dflash_core.spec import RopeSpec

KINDS = ("default", "linear", "yarn")
YARN = (
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "truncate",
)
LONGEST = 1 << 31


def read_rope(keys: Keys, max_positions: int) -> RopeSpec:
    """Read the rotary embedding from either spelling, or from both where they agree.

    Args:
        max_positions: YaRN's `original_max_position_embeddings` where there is none, as in transformers.

    Raises:
        CheckpointError: theta is missing, the kind is not one of `KINDS`, or the spellings contradict.
    """
    theta = keys.maybe_number("rope_theta")
    spellings = {name: keys.section(name) for name in ("rope_parameters", "rope_scaling")}
    found = {
        name: _read(section, theta, max_positions)
        for name, section in spellings.items()
        if section is not None and section.sources[0].values
    }
    if not found:
        if theta is None:
            keys.fail(
                "rope_theta", "is missing (and so is rope_parameters); programs disagree about a default."
            )
        return RopeSpec(theta=theta)
    first, *others = found.values()
    if any(other != first for other in others):
        keys.fail("rope_parameters", "and rope_scaling contradict each other. Keep the one that is right.")
    return first


def write_rope(rope: RopeSpec) -> dict[str, Any]:
    """The older spelling, which every program reads."""
    if rope.kind == "default":
        return {"rope_theta": rope.theta, "rope_scaling": None}
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "yarn":
        values = asdict(rope)
        scaling |= {name: values[name] for name in YARN if values[name] is not None}
    return {"rope_theta": rope.theta, "rope_scaling": scaling}


def _read(keys: Keys, theta: float | None, max_positions: int) -> RopeSpec:
    own = keys.maybe_number("rope_theta")
    if own is not None and theta is not None and own != theta:
        keys.fail("rope_theta", f"is {own:g}, but the top-level rope_theta is {theta:g}. Keep the right one.")
    kind = _kind(keys)
    keys.locked({"partial_rotary_factor": ((1, 1.0), "rotating a part of each head")})
    base = own if own is not None else theta
    if base is None:
        keys.fail("rope_theta", "is missing, here and at the top level.")
    if kind == "default":
        keys.rest()
        return RopeSpec(theta=base)
    factor = keys.number("factor", 0.999999, 1e6)
    if kind == "linear":
        keys.rest()
        return RopeSpec(theta=base, kind="linear", factor=factor)
    fast = keys.maybe_number("beta_fast", 0, 1e6) or 32.0
    slow = keys.maybe_number("beta_slow", 0, 1e6) or 1.0
    if fast <= slow:
        keys.fail("beta_fast", f"is {fast:g}; it must be above beta_slow, {slow:g}.")
    original = keys.maybe_integer("original_max_position_embeddings", 1, LONGEST)
    truncate = keys.maybe_flag("truncate")
    spec = RopeSpec(
        theta=base,
        kind="yarn",
        factor=factor,
        original_max_position_embeddings=original or max_positions,
        attention_factor=keys.maybe_number("attention_factor", 0, 1e6),
        beta_fast=fast,
        beta_slow=slow,
        mscale=keys.maybe_number("mscale", 0, 1e6),
        mscale_all_dim=keys.maybe_number("mscale_all_dim", 0, 1e6),
        truncate=truncate is not False,
    )
    keys.rest()
    return spec


def _kind(keys: Keys) -> str:
    """`rope_type`, or `type` as it was called before."""
    new, old = keys.maybe_text("rope_type"), keys.maybe_text("type")
    if new is not None and old is not None and new != old:
        keys.fail("rope_type", f"is {show(new)}, but type is {show(old)}. Keep the right one.")
    kind = new or old or "default"
    if kind not in KINDS:
        raise CheckpointError(
            f"{keys.where}: {keys.name('rope_type' if new else 'type')} is {show(kind)}, which is not "
            f"understood; understood are {', '.join(KINDS)}."
        )
    return kind
