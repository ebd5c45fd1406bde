"""A transformers model as the target that the decoder drives."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dflash_backends.transformers.anatomy import Anatomy
from dflash_backends.transformers.costs import forward_costs
from dflash_backends.transformers.info import read_info
from dflash_backends.transformers.processors import build_processors
from dflash_backends.transformers.state import TransformersState
from dflash_backends.transformers.tokenizer import encode_conversation
from dflash_core.errors import PairError, RequestError, UnsupportedError
from dflash_core.fastpath import FastPath
from dflash_core.schedule.cost import interpolate
from dflash_core.target import TargetInfo
from dflash_kernels.folders import cache_root

UNTOUCHED = FastPath(reason="it is off")


class TransformersTarget:
    """See `dflash_core.target.TargetModel`; `load_target` and `from_model` make one.

    Attributes:
        tokenizer: the folder's tokenizer, where it has one.
        fast: what was done to its linear layers.
    """

    def __init__(
        self, parts: Anatomy, tokenizer: PreTrainedTokenizerBase | None = None, fast: FastPath = UNTOUCHED
    ) -> None:
        self._parts = parts
        self._info = read_info(parts)
        self._costs: dict[int, float] = {}
        self.tokenizer = tokenizer
        self.fast = fast

    @property
    def info(self) -> TargetInfo:
        return self._info

    @property
    def model(self) -> PreTrainedModel:
        """The transformers model itself."""
        return self._parts.model

    def embed(self, tokens: Tensor) -> Tensor:
        """Raw input embeddings [..., D] of tokens [...]; the embedding module of Gemma would scale them."""
        return F.embedding(tokens, self._parts.embedding)

    def head(self, hidden: Tensor) -> Tensor:
        """Raw LM head: logits [..., V] of final-normed hidden states [..., D], without softcap or scale."""
        logits: Tensor = self._parts.head(hidden)
        return logits

    def start(self, taps: Sequence[int] = ()) -> TransformersState:
        """An empty state whose forwards return these taps.

        Raises:
            PairError: a tap is not one of the model's layers.
        """
        layers = self._info.num_layers
        if any(not 0 <= tap < layers for tap in taps):
            raise PairError(
                f"The taps are {list(taps)}, but {self._info.name} has {layers} layers (0 to {layers - 1})."
            )
        return TransformersState(self._parts, taps)

    def draft_shape(self) -> Mapping[str, Any]:
        """Fields of a `DraftSpec` for a draft whose layers are like the target's."""
        config = self._parts.config
        heads = config.num_attention_heads
        return {
            "intermediate_size": config.intermediate_size,
            "num_heads": heads,
            "num_kv_heads": getattr(config, "num_key_value_heads", None) or heads,
            "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
            "rms_norm_eps": getattr(config, "rms_norm_eps", 1e-6),
            "hidden_act": getattr(config, "hidden_act", "silu"),
        }

    def layer_weights(self, index: int | None) -> Mapping[str, Tensor]:
        """A block's weights by transformers' names (`self_attn.q_proj.weight`); of `None` the final norm's.

        A norm that adds 1 to its weight (Gemma) has none in the usual sense, so its blocks are not given.

        Raises:
            UnsupportedError: the model's norms are of another kind.
        """
        norm = getattr(self._parts.model.get_decoder(), "norm", None)
        if norm is None or "(1.0 + " in inspect.getsource(type(norm).forward):
            raise UnsupportedError(
                f"{self._info.name} has norms of its own kind, which a draft cannot take over."
            )
        if index is None:
            return {"norm.weight": norm.weight.detach()}
        return {name: weight.detach() for name, weight in self._parts.layers[index].named_parameters()}

    def calibrate(self, cache_dir: Path | None = None) -> None:
        """Find out what a forward costs by its tokens; some ten seconds once, kept in the cache folder."""
        self._costs = forward_costs(self._parts, self.fast, cache_dir or cache_root())

    def forward_seconds(self, rows: int) -> float | None:
        """Seconds of a verify forward of so many tokens in all, behind a short context.

        `None` before `calibrate`, and where the machine was too busy for it.
        """
        return interpolate(self._costs, rows) if self._costs else None

    @property
    def detokenize(self) -> Callable[[Sequence[int]], str] | None:
        """Token ids -> text without special tokens; `None` without a tokenizer."""
        if self.tokenizer is None:
            return None
        tokenizer = self.tokenizer
        return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text as it stands.

        Raises:
            RequestError: the target has no tokenizer.
        """
        ids: list[int] = self._needed_tokenizer()(text)["input_ids"]
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Token ids of a conversation put through the chat template, up to where the answer begins.

        Args:
            messages: mappings with `role` and `content`.
            options: variables of the template, e.g. `enable_thinking=False`.

        Raises:
            RequestError: the target has no tokenizer, or it has no chat template.
        """
        return encode_conversation(self._needed_tokenizer(), self._info.name, messages, **options)

    def logits_processors(
        self, arguments: Mapping[str, Any], prompt_length: int, eos_token_ids: Sequence[int]
    ) -> list[Callable[[Tensor, Tensor], Tensor]]:
        """Processors for arguments of `model.generate`, e.g. `repetition_penalty=1.2`.

        Raises:
            RequestError: an argument is unknown, or its value makes no sense.
        """
        return build_processors(arguments, prompt_length, eos_token_ids, self._info.device)

    def _needed_tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise RequestError(f"{self._info.name} has no tokenizer; give the prompt as token ids.")
        return self.tokenizer
