"""Our own cache for transformers' models: preallocated, ragged, cropped by forgetting."""

from collections.abc import Sequence

from torch import Tensor
from transformers import Cache

from dflash_backends.transformers.recurrent import RecurrentRows
from dflash_backends.transformers.rows import KeyValueRows
from dflash_backends.transformers.span import Span
from dflash_kernels.gather_slots import gather_slots


class RaggedCache(Cache):  # type: ignore[misc]
    """What a state keeps of each layer, row by row.

    A row holds its committed tokens in slots 0 to length - 1. A forward writes behind them, as its `Span`
    says, and nothing of that counts until `lengths` grows: to crop is to leave them as they are.
    Layers of one kind hold K/V, those of the other kind a recurrent state.
    """

    def __init__(self, layer_types: Sequence[str]) -> None:
        super().__init__(
            layers=[RecurrentRows() if kind == "linear_attention" else KeyValueRows() for kind in layer_types]
        )
        self.lengths: list[int] = []
        self.span: Span | None = None

    @property
    def recurrent(self) -> dict[int, RecurrentRows]:
        """The recurrent layers by index."""
        return {i: layer for i, layer in enumerate(self.layers) if isinstance(layer, RecurrentRows)}

    def open(self, span: Span) -> None:
        """Say where the next forward writes, and forget what the last one wrote that was not committed."""
        self.span = span
        for layer in self.recurrent.values():
            layer.open(span)

    def close_row(self) -> None:
        """Append the row that was just prefilled."""
        span = self._opened
        for layer in self.recurrent.values():
            layer.append()
        self.lengths.append(span.total)

    def gather(self, source: Tensor) -> None:
        """Move slots of the last block to its front; `source` [B, A] counts from the block's first slot."""
        stored = [t for layer in self.layers if isinstance(layer, KeyValueRows) for t in layer.tensors]
        gather_slots(stored, self._opened.starts_tensor, source)

    def keep(self, rows: Sequence[int]) -> None:
        """New row i is old row `rows[i]`."""
        moved = [(i, row) for i, row in enumerate(rows) if i != row]
        self.lengths = [self.lengths[row] for row in rows]
        for layer in self.layers:
            layer.keep(rows, moved, max(self.lengths, default=0))

    @property
    def _opened(self) -> Span:
        if self.span is None:
            raise RuntimeError("The cache is not open: nothing has been run yet.")
        return self.span

    # What transformers' models call. Every layer's slots are alike, so a layer's index decides nothing.

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        return self.layers[layer_idx].write(key_states, value_states, self._opened)  # type: ignore[no-any-return]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._opened.total - self._opened.width

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._opened.total, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._recurrent(layer_idx, state_idx).conv

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._recurrent(layer_idx, state_idx).state

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None
    ) -> Tensor:
        return self._recurrent(layer_idx, state_idx).push_conv(conv_states, conv_kernel_size)

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0) -> Tensor:
        layer = self._recurrent(layer_idx, state_idx)
        layer.state = recurrent_states
        return recurrent_states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return self.get_seq_length() > 0

    def _recurrent(self, layer_idx: int, state_idx: int) -> RecurrentRows:
        layer = self.layers[layer_idx]
        if state_idx != 0 or not isinstance(layer, RecurrentRows):
            raise RuntimeError(f"Layer {layer_idx} has no recurrent state {state_idx} in this cache.")
        return layer
