"""What a running batch carries from one cycle to the next."""

import torch
from sglang.srt.speculative.spec_info import SpecInput, SpecInputType
from torch import Tensor


class Anchors(SpecInput):
    """The newest token of every request; SGLang filters and merges it along with its batches."""

    def __init__(self, tokens: Tensor) -> None:
        super().__init__(SpecInputType.DFLASH_DRAFT)
        self.tokens = tokens
        self.num_tokens_per_req = 1
        self.num_tokens_for_logprob_per_req = 1

    def filter_batch(self, new_indices: Tensor, new_indices_cpu: list[int] | None = None) -> None:
        """Keep these rows."""
        self.tokens = self.tokens[new_indices]

    def merge_batch(self, spec_info: "Anchors") -> None:
        """Append another batch's rows."""
        self.tokens = torch.cat([self.tokens, spec_info.tokens])
