"""A verifier that accepts one draft a cycle at most."""

import torch
from torch import Tensor

from dflash_core.plugins import provider
from dflash_core.proposal import Proposal
from dflash_core.sampling import SamplingBatch
from dflash_core.verdict import Verdict


class PatientVerifier:
    """Cuts the built-in verdict short.

    Lossless: an accepted draft is the very token that the target would have produced there, so the first
    one that is not counted as accepted serves as the bonus.
    """

    name = "patient"
    lossless = True

    def __init__(self, limit: int = 1) -> None:
        self._limit = limit
        self._inner = provider("verifiers", "sampling")()

    def verify(self, proposal: Proposal, logits: Tensor, sampling: SamplingBatch) -> Verdict:
        """The inner verdict with at most `limit` drafts accepted."""
        verdict: Verdict = self._inner.verify(proposal, logits, sampling)
        accepted = verdict.accepted.clamp(max=self._limit)
        beyond = torch.arange(verdict.nodes.shape[1], device=accepted.device) > accepted[:, None]
        return Verdict(
            accepted, verdict.nodes.masked_fill(beyond, -1), verdict.tokens.masked_fill(beyond, -1)
        )
