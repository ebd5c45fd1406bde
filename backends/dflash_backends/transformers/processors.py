"""Turns further arguments of `model.generate` into transformers' logits processors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from dflash_core.errors import RequestError

Processor = Callable[[Tensor, Tensor], Tensor]
Build = Callable[[Any, int, list[int], torch.device], Processor]

KNOWN: Mapping[str, Build] = {
    "repetition_penalty": lambda value, prompt, eos, device: RepetitionPenaltyLogitsProcessor(value),
    "no_repeat_ngram_size": lambda value, prompt, eos, device: NoRepeatNGramLogitsProcessor(value),
    "sequence_bias": lambda value, prompt, eos, device: SequenceBiasLogitsProcessor(value),
    "bad_words_ids": lambda value, prompt, eos, device: NoBadWordsLogitsProcessor(value, eos),
    "suppress_tokens": lambda value, prompt, eos, device: SuppressTokensLogitsProcessor(value, device),
    "min_new_tokens": lambda value, prompt, eos, device: MinNewTokensLengthLogitsProcessor(
        prompt, value, eos, device
    ),
    "min_length": lambda value, prompt, eos, device: MinNewTokensLengthLogitsProcessor(0, value, eos, device),
}
"""Argument -> its processor; applied in this order, which is that of `model.generate`."""

OFF: Mapping[str, Any] = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_new_tokens": 0}
"""Values besides `None` that ask for nothing."""


def build_processors(
    arguments: Mapping[str, Any], prompt_length: int, eos_token_ids: Sequence[int], device: torch.device
) -> list[Processor]:
    """A processor an argument, in the order in which `model.generate` applies them.

    Args:
        arguments: names and values as `model.generate` takes them; `None` is off.
        prompt_length: tokens of the prompt, for limits that count new tokens.

    Raises:
        RequestError: an argument is unknown, or transformers refuses its value.
    """
    unknown = sorted(set(arguments) - set(KNOWN))
    if unknown:
        raise RequestError(
            f"Unknown arguments: {', '.join(unknown)}. Those of `model.generate` that shape logits and are "
            f"known here: {', '.join(KNOWN)}; any other processor can be given as logits_processor."
        )
    processors = []
    for name, build in KNOWN.items():
        value = arguments.get(name)
        if value is None or value == OFF.get(name):
            continue
        needs_eos = name.startswith("min_")
        if needs_eos and not eos_token_ids:
            continue  # nothing ends a generation, so no length is too short
        try:
            processors.append(build(value, prompt_length, list(eos_token_ids), device))
        except (TypeError, ValueError) as error:
            raise RequestError(f"{name} is {value!r}: {error}") from error
    return processors
