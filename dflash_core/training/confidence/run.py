"""From observed blocks to a calibrated head, and a report on blocks that neither step has seen."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from dflash_core.checkpoint.export import Head
from dflash_core.drafter.confidence import ConfidenceHead
from dflash_core.errors import RequestError
from dflash_core.spec import ConfidenceSpec
from dflash_core.training.confidence.calibration import Reliability, reliability, survival
from dflash_core.training.confidence.fit import FitOptions, fit_head
from dflash_core.training.confidence.observations import Observations, split
from dflash_core.training.confidence.temperatures import sequential_temperatures, survival_loss

SHARES = (0.7, 0.15)
"""Of the prompts: to fit; to stop and calibrate by. The rest is reported on."""

FEWEST_PROMPTS = 10


@dataclass(frozen=True)
class Report:
    """How good a head is, on prompts that were held out.

    Attributes:
        blocks, prompts: observed in all.
        acceptance_length: mean of accepted drafts + 1 over all blocks.
        slot_acceptance: by slot, share of drafts accepted when all before were.
        slots_before, slots_after: a slot's own probability, given that all before were accepted.
        survival_before, survival_after: the products that a schedule works with.
        validation_before, validation_after: nats an event of the survival products on the part that the
            temperatures were fitted to.
    """

    blocks: int
    prompts: int
    acceptance_length: float
    slot_acceptance: tuple[float, ...]
    slots_before: Reliability
    slots_after: Reliability
    survival_before: Reliability
    survival_after: Reliability
    validation_before: float
    validation_after: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def train_confidence(
    observations: Observations,
    options: FitOptions,
    dtype: torch.dtype = torch.float32,
    on_epoch: Callable[[int, float, float], None] = lambda epoch, loss, validation: None,
) -> tuple[Head, Report]:
    """Fit, calibrate and report; the same observations and seed give the same head.

    Args:
        dtype: that the head is going to be stored in; temperatures and report are those of the stored head.

    Raises:
        RequestError: there are too few prompts, or nothing to tell accepted from rejected drafts by.
    """
    prompts = len(observations.groups.unique())
    if prompts < FEWEST_PROMPTS:
        raise RequestError(
            f"There are blocks of {prompts} prompts; a confidence head needs at least {FEWEST_PROMPTS}, so "
            "that some can be held out, and is good with some hundreds."
        )
    parts = split(observations, SHARES, options.seed)
    tensors = {
        name: one.to(dtype)
        for name, one in fit_head(parts.train, parts.validation, options, on_epoch).items()
    }
    slots = observations.hidden.shape[1]
    plain = ConfidenceSpec(options.width, options.features, (1.0,) * slots)
    fitted = ConfidenceHead(plain, tensors)
    validation, test = (_logits(fitted, part) for part in (parts.validation, parts.test))
    temperatures = sequential_temperatures(validation, parts.validation)
    report = Report(
        blocks=len(observations),
        prompts=prompts,
        acceptance_length=1 + float(observations.accepted.double().mean()),
        slot_acceptance=_slot_acceptance(observations),
        slots_before=_of_slots(test, plain.temperatures, parts.test),
        slots_after=_of_slots(test, temperatures, parts.test),
        survival_before=_of_products(test, plain.temperatures, parts.test),
        survival_after=_of_products(test, temperatures, parts.test),
        validation_before=survival_loss(validation, plain.temperatures, parts.validation),
        validation_after=survival_loss(validation, temperatures, parts.validation),
    )
    return Head(ConfidenceSpec(options.width, options.features, temperatures), tensors), report


@torch.no_grad()
def _logits(head: ConfidenceHead, observations: Observations) -> Tensor:
    logits: Tensor = head.logits(observations.hidden, observations.log_probs)
    return logits


def _of_slots(logits: Tensor, temperatures: tuple[float, ...], observations: Observations) -> Reliability:
    reached = observations.reached
    stated = (logits.double() / torch.tensor(temperatures, dtype=torch.float64)).sigmoid()
    return reliability(stated[reached], observations.survived[reached])


def _of_products(logits: Tensor, temperatures: tuple[float, ...], observations: Observations) -> Reliability:
    looked = observations.looked_at
    stated = survival(logits, torch.tensor(temperatures, dtype=torch.float64))
    return reliability(stated[looked], observations.survived[looked])


def _slot_acceptance(observations: Observations) -> tuple[float, ...]:
    reached, survived = observations.reached.sum(0), observations.survived.sum(0)
    return tuple((survived / reached.clamp(min=1)).tolist())
