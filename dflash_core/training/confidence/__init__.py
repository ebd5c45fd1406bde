"""A confidence head for a trained draft: observed, fitted, calibrated, shown."""

from dflash_core.training.confidence.collect import CollectOptions, observe
from dflash_core.training.confidence.fit import FitOptions, fit_head
from dflash_core.training.confidence.observations import Observations
from dflash_core.training.confidence.run import Report, train_confidence
from dflash_core.training.confidence.temperatures import sequential_temperatures

__all__ = [
    "CollectOptions",
    "FitOptions",
    "Observations",
    "Report",
    "fit_head",
    "observe",
    "sequential_temperatures",
    "train_confidence",
]
