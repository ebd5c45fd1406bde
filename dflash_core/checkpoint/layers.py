"""What each draft layer sees: windows and causality, from the many keys that say so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash_core.checkpoint.keys import Keys, show
from dflash_core.errors import CheckpointError
from dflash_core.spec import LayerSpec

FULL, SLIDING = "full_attention", "sliding_attention"
LONGEST = 1 << 31
MOST_LAYERS = 512


def read_layers(keys: Keys, count: int, causal: bool | None) -> tuple[LayerSpec, ...]:
    """Read windows and causality of `count` layers.

    A layer slides when `layer_types` says so; where that names no sliding layer, `use_swa` makes all slide.
    The window is `swa_window_size` or `sliding_window`. Without `layer_types`, Qwen3's rule holds: layers
    from `max_window_layers` on slide when `use_sliding_window` is true.

    Args:
        causal: holds for every layer; `None` means causal for layers of the type `sliding_attention` and
            bidirectional for all others.
    """
    use_swa = keys.maybe_flag("use_swa") is True
    types = _types(keys, count, use_swa)
    if not use_swa and SLIDING not in types:
        keys.maybe_integer(
            "sliding_window", 0, LONGEST
        )  # as Qwen3 configs have it beside a switch that is off
        if keys.maybe_integer("swa_window_size", 0, LONGEST) and keys.find("use_swa") is None:
            keys.fail("swa_window_size", "is set, but no layer slides: use_swa is missing.")
        return tuple(LayerSpec(None, bool(causal)) for _ in types)
    window = _window(keys, use_swa)
    everywhere = SLIDING not in types
    return tuple(
        LayerSpec(
            window if everywhere or kind == SLIDING else None, kind == SLIDING if causal is None else causal
        )
        for kind in types
    )


def write_layers(layers: Sequence[LayerSpec]) -> dict[str, Any]:
    """Keys that `read_layers` (with a `causal` taken from `is_causal`) reads back into these layers.

    Raises:
        CheckpointError: several window sizes, or causality that neither one value nor the rule expresses.
    """
    windows = {layer.window for layer in layers} - {None}
    if len(windows) > 1:
        raise CheckpointError(
            f"layers have windows of {sorted(filter(None, windows))} tokens; one size can be written."
        )
    written: dict[str, Any] = {
        "layer_types": [FULL if layer.window is None else SLIDING for layer in layers],
        "sliding_window": next(iter(windows), None),
        "use_sliding_window": bool(windows),
        "max_window_layers": len(layers),
    }
    if all(layer.causal == (layer.window is not None) for layer in layers):
        return written
    causal = {layer.causal for layer in layers}
    if len(causal) > 1:
        raise CheckpointError(
            "layers differ in causality otherwise than by their type; that cannot be written."
        )
    return {**written, "is_causal": causal.pop()}


def _types(keys: Keys, count: int, use_swa: bool) -> list[str]:
    types = keys.maybe_list("layer_types", str, MOST_LAYERS)
    switch = keys.maybe_flag("use_sliding_window")
    first = keys.maybe_integer("max_window_layers", 0, LONGEST)
    if types is None:
        if not switch or use_swa:
            return [FULL] * count
        if first is None:
            keys.fail(
                "use_sliding_window", "is true, but neither layer_types nor max_window_layers says where."
            )
        return [SLIDING if index >= first else FULL for index in range(count)]
    for kind in types:
        if kind not in (FULL, SLIDING):
            keys.fail(
                "layer_types", f"names {show(kind)}, which is not understood; {FULL} and {SLIDING} are."
            )
    if len(types) != count:
        keys.fail("layer_types", f"has {len(types)} entries, but num_hidden_layers is {count}.")
    if SLIDING in types and not use_swa and switch is not True:
        keys.fail("layer_types", f"names {SLIDING}, but use_sliding_window is not true, so no window holds.")
    return types


def _window(keys: Keys, use_swa: bool) -> int:
    swa = keys.maybe_integer("swa_window_size", 1, LONGEST)
    sliding = keys.maybe_integer("sliding_window", 1, LONGEST)
    switched_off = keys.maybe_flag("use_sliding_window") is False
    if swa is not None and sliding is not None and swa != sliding and not switched_off:
        keys.fail("swa_window_size", f"is {swa}, but sliding_window is {sliding}. Keep the right one.")
    window = swa if swa is not None else sliding
    if window is None:
        keys.fail("sliding_window", "is missing, but layers slide; it must be a number of tokens.")
    return window
