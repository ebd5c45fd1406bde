"""SGLang's loaded model as the core's `TargetModel`: facts, embedding and head; SGLang drives the rest."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dflash_core.checkpoint.targets import read_target_rope
from dflash_core.errors import UnsupportedError
from dflash_core.target import TargetInfo, TargetState


class SGLangTarget:
    """Lends what a draft borrows. With several tensor-parallel ranks, each holds a part of both."""

    def __init__(self, model_runner: Any) -> None:
        """
        Raises:
            UnsupportedError: the model has no embedding or head that can be lent, or cannot hand out taps.
        """
        self._model = model_runner.model
        self.info = read_info(model_runner)
        self._embedding = find_embedding(self._model)
        self._head: Any = getattr(self._model, "lm_head", None)
        name = type(self._model).__name__
        if self._embedding is None or self._head is None:
            missing = "embedding" if self._embedding is None else "lm_head"
            raise UnsupportedError(f"{name} has no {missing} that a draft could borrow; use another target.")
        if not hasattr(self._model, "set_dflash_layers_to_capture"):
            raise UnsupportedError(
                f"SGLang's {name} cannot hand out its layers' outputs, which a DFlash draft reads."
            )

    def capture(self, taps: Sequence[int]) -> None:
        """Have every forward return these taps, side by side in ascending order."""
        self._model.set_dflash_layers_to_capture(sorted(taps))

    def embed(self, tokens: Tensor) -> Tensor:
        """See `TargetModel.embed`."""
        rows: Tensor = self._embedding(tokens.flatten())
        return rows.view(*tokens.shape, -1)

    def head(self, hidden: Tensor) -> Tensor:
        """See `TargetModel.head`."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        logits = self._head.quant_method.apply(self._head, flat, None)
        if logits.shape[-1] < self.info.vocab_size:
            from sglang.srt.distributed import tensor_model_parallel_all_gather

            logits = tensor_model_parallel_all_gather(logits)
        own: Tensor = logits[:, : self.info.vocab_size]
        return own.reshape(*hidden.shape[:-1], -1)

    def start(self, taps: Sequence[int]) -> TargetState:
        """SGLang keeps the state itself."""
        raise UnsupportedError("SGLang drives its target itself; there is no state to start.")


def find_embedding(model: Any) -> Any:
    """The module that embeds tokens; `None` when there is none to be found."""
    get = getattr(model, "get_input_embeddings", None)
    if callable(get):
        return get()
    return getattr(getattr(model, "model", None), "embed_tokens", None)


def read_info(model_runner: Any) -> TargetInfo:
    """Facts, from the model's configuration as SGLang has read it."""
    config = model_runner.model_config
    text = config.hf_text_config
    return TargetInfo(
        name=str(config.model_path),
        num_layers=int(text.num_hidden_layers),
        hidden_size=int(config.hidden_size),
        vocab_size=int(config.vocab_size),
        max_positions=int(config.context_len),
        rope=read_target_rope(text.to_dict()),
        recurrent=False,
        trees=True,
        eos_token_ids=(),
        device=torch.device(model_runner.device),
        dtype=config.dtype,
    )


def tap_order(taps: Sequence[int], hidden_size: int, device: torch.device) -> Tensor | None:
    """Columns of the captured taps (ascending) in the draft's order; `None` when that is the same."""
    ordered = sorted(taps)
    if list(taps) == ordered:
        return None
    blocks = torch.tensor([ordered.index(tap) for tap in taps], device=device)
    return (blocks[:, None] * hidden_size + torch.arange(hidden_size, device=device)).flatten()
