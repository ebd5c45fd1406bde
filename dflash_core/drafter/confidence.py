"""A confidence head: how likely each drafted slot's token is accepted, given that all before it were."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dflash_core.checkpoint.confidence import CONFIDENCE_PREFIX, OURS
from dflash_core.drafter.weights import linear
from dflash_core.errors import UnsupportedError
from dflash_core.spec import ConfidenceFeature, ConfidenceSpec


class ConfidenceHead(nn.Module):
    """`sigmoid(f([h, features]) / T)`, in float32 whatever the checkpoint's dtype.

    f is `down(silu(up(x)))`, or `proj(x)` where the spec has no hidden size.

    Attributes:
        temperatures: [S - 1] float32, one a drafted slot.
    """

    temperatures: Tensor

    def __init__(
        self,
        spec: ConfidenceSpec,
        tensors: Mapping[str, Tensor],
        device: torch.device | str = "cpu",
    ) -> None:
        """
        Args:
            tensors: by canonical name, those of the head among them; see `checkpoint.confidence`.
        """
        super().__init__()

        def layer(name: str) -> nn.Module:
            weight, bias = (
                tensors[f"{CONFIDENCE_PREFIX}{name}.{part}"].to(device, torch.float32)
                for part in ("weight", "bias")
            )
            return linear(weight, bias)

        if spec.hidden_size is None:
            self.score = layer("proj")
        else:
            self.score = nn.Sequential(layer("up"), nn.SiLU(), layer("down"))
        self.features = spec.features
        temperatures = torch.tensor(spec.temperatures, dtype=torch.float32, device=device)
        self.register_buffer("temperatures", temperatures, persistent=False)

    def logits(self, hidden: Tensor, log_probs: Tensor, before: Tensor | None = None) -> Tensor:
        """Before the temperatures.

        Args:
            hidden: [..., D', D] of the first D' drafted slots, after the final norm.
            log_probs: [..., D'], the draft's log-probability of each slot's token.
            before: [..., D', R], the Markov head's rows of the tokens before; needed for that feature.

        Returns:
            [..., D'] float32.
        """
        x = head_inputs(hidden, log_probs, self.features, len(self.temperatures), before)
        scores: Tensor = self.score(x)
        return scores[..., 0]

    def forward(self, hidden: Tensor, log_probs: Tensor, before: Tensor | None = None) -> Tensor:
        """Probabilities [..., D'] float32; arguments as of `logits`."""
        which = slot_numbers(hidden.shape[-2], len(self.temperatures), hidden.device)
        return (self.logits(hidden, log_probs, before) / self.temperatures[which]).sigmoid()


def head_inputs(
    hidden: Tensor,
    log_probs: Tensor,
    features: tuple[ConfidenceFeature, ...],
    slots: int,
    before: Tensor | None = None,
) -> Tensor:
    """What a head takes: [..., D', D + features] float32 of hidden states [..., D', D].

    Args:
        log_probs: [..., D'].
        slots: S - 1, the length of a one-hot slot.
        before: [..., D', R], the Markov head's rows of the tokens before.

    Raises:
        UnsupportedError: a feature is asked for that nobody gave.
    """
    if before is None and "before" in features:
        raise UnsupportedError(
            "This confidence head wants a Markov head's rows of the tokens before, which are not known here; "
            f"choose among {', '.join(OURS)}."
        )
    which = slot_numbers(hidden.shape[-2], slots, hidden.device)
    columns = {
        "slot": torch.eye(slots, device=hidden.device)[which].expand(*hidden.shape[:-1], slots),
        "log_prob": log_probs.float()[..., None],
        "before": hidden[..., :0] if before is None else before.float(),
    }
    return torch.cat([hidden.float(), *(columns[feature] for feature in features)], -1)


def slot_numbers(drafted: int, slots: int, device: torch.device) -> Tensor:
    """[drafted] int64: 0, 1, ...; in a block that is longer than the draft's own the last slot repeats."""
    return torch.arange(drafted, device=device).clamp(max=slots - 1)
