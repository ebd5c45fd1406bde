"""The requests that a transformers model decodes together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_backends.transformers.anatomy import Anatomy
from dflash_backends.transformers.cache import RaggedCache
from dflash_backends.transformers.masks import build_masks
from dflash_backends.transformers.replay import recorded, settle
from dflash_backends.transformers.span import Span
from dflash_backends.transformers.taps import side_by_side, tapped
from dflash_core.errors import RequestError, UnsupportedError
from dflash_core.rollback.base import RollbackPlan
from dflash_core.target import Recording, TargetOutput
from dflash_core.tree import TokenTree

PREFILL_CHUNK = 2048
"""Prompt tokens a forward; bounds the memory of a long prompt's activations."""


class TransformersState:
    """A ragged cache and the forwards that fill it; see `dflash_core.target.TargetState`."""

    def __init__(self, anatomy: Anatomy, taps: Sequence[int]) -> None:
        self._parts = anatomy
        self._taps = tuple(taps)
        self._cache = RaggedCache(anatomy.layer_types)
        self._verified: tuple[int, Recording] | None = None

    @property
    def lengths(self) -> Sequence[int]:
        """Committed positions a row, the anchor not among them."""
        return tuple(self._cache.lengths)

    @torch.no_grad()
    def prefill(self, prompt: Sequence[int]) -> TargetOutput:
        """Append a row and run its prompt by itself, so that nothing depends on the other rows.

        Raises:
            RequestError: the prompt is empty, or has a token that the model does not know.
        """
        vocabulary = len(self._parts.embedding)
        if not prompt or not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise RequestError(
                f"A prompt of {self._parts.name} is at least one token id from 0 to {vocabulary - 1}."
            )
        taps = []
        for start in range(0, len(prompt), PREFILL_CHUNK):
            tokens = torch.tensor([prompt[start : start + PREFILL_CHUNK]], device=self._parts.device)
            output = self._extend(tokens, start)
            taps.append(output.taps)
        self._cache.close_row()
        joined = None if output.taps is None else torch.cat([part for part in taps if part is not None], 1)
        return TargetOutput(output.logits, joined)

    @torch.no_grad()
    def verify(self, tree: TokenTree, recording: Recording = "none") -> TargetOutput:
        """Run all nodes of all rows in one forward.

        Raises:
            UnsupportedError: a tree that branches, on a model with recurrent layers.
        """
        if self._parts.mixers and not tree.is_chain:
            raise UnsupportedError(
                f"{self._parts.name} cannot verify trees: its recurrent layers carry one state, which cannot "
                "follow several branches. Propose chains."
            )
        span = Span(0, tuple(self._cache.lengths), tree.width, self._parts.device)
        self._cache.open(span)
        self._verified = (tree.width, recording)
        with recorded(self._parts.mixers, self._cache, recording):
            return self._forward(tree.tokens, span, tree.visible, tree.depths)

    @torch.no_grad()
    def commit(self, plan: RollbackPlan) -> None:
        """Keep what the plan names of the last `verify`.

        Raises:
            UnsupportedError: the plan needs what was not recorded, or nothing has been verified.
        """
        if self._verified is None:
            raise UnsupportedError("There is nothing to commit: no `verify` since the last commit.")
        width, recording = self._verified
        if self._parts.mixers:
            if plan.recurrent != recording:
                raise UnsupportedError(
                    f"The plan rolls recurrent layers back by {plan.recurrent!r}, but the forward recorded "
                    f"for {recording!r}."
                )
            settle(self._parts.mixers, self._cache, plan.keep, width, recording)
        if plan.gather is not None:
            self._cache.gather(plan.gather)
        self._cache.lengths = [
            length + kept for length, kept in zip(self._cache.lengths, plan.keep, strict=True)
        ]
        self._verified = None

    @torch.no_grad()
    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order: new row i is old row `rows[i]`."""
        self._cache.keep(rows)
        self._verified = None

    def _extend(self, tokens: Tensor, start: int) -> TargetOutput:
        """Run the next tokens [1, N] of the row that is being prefilled."""
        span = Span(len(self._cache.lengths), (start,), tokens.shape[1], self._parts.device)
        self._cache.open(span)
        depths = torch.arange(span.width, device=tokens.device)[None]
        # The model's own causal mask is right for a row by itself, and the fastest for a long prompt.
        return self._forward(tokens, span, None, depths, last_only=True)

    def _forward(
        self, tokens: Tensor, span: Span, visible: Tensor | None, depths: Tensor, last_only: bool = False
    ) -> TargetOutput:
        parts = self._parts
        mask: object = None
        if visible is not None:
            masks = build_masks(parts.windows, span, visible, depths, parts.dtype)
            mask = {"linear_attention": None, **masks} if parts.masks_by_type else next(iter(masks.values()))
        with tapped(parts.layers, self._taps) as found:
            output = parts.model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=span.starts_tensor[:, None] + depths,
                cache=self._cache,
                use_cache=True,
                logits_to_keep=1 if last_only else 0,
            )
        return TargetOutput(output.logits, side_by_side(found))
