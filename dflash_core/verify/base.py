"""Verifiers are pure functions of a proposal and the target's logits."""

from typing import Protocol

from torch import Tensor

from dflash_core.proposal import Proposal
from dflash_core.sampling import SamplingBatch
from dflash_core.verdict import Verdict


class Verifier(Protocol):
    """Decides which drafted tokens stay. No engine, no cache, no device synchronisation inside."""

    name: str
    lossless: bool

    def verify(self, proposal: Proposal, logits: Tensor, sampling: SamplingBatch) -> Verdict:
        """
        Args:
            proposal: trees of N nodes.
            logits: [B, N, V], the target's at every node, processors already applied.
            sampling: settings and noise keys of the B requests.
        """
        ...
