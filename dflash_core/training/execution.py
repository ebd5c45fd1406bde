"""How a training run is carried out, as opposed to what it learns."""

from dataclasses import dataclass

from dflash_core.errors import SettingsError
from dflash_core.training.processes import Alone, Processes

ALONE = Alone()


@dataclass(frozen=True)
class Execution:
    """Whatever is chosen here, a step sees the same blocks with the same weights: a run may go on otherwise
    than it began, and differs by no more than rounding.

    Attributes:
        processes: each takes its own rows of every batch.
        accumulate: parts in which a process computes its rows, one after the other, to need less memory.
        compiled: whether the draft's forward goes through `torch.compile`.
    """

    processes: Processes = ALONE
    accumulate: int = 1
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise SettingsError(f"accumulate is {self.accumulate}; it must be at least 1.")

    @property
    def leads(self) -> bool:
        """Whether this process reports and writes."""
        return self.processes.rank == 0

    def check(self, batch: int) -> None:
        """Raises SettingsError for a batch that cannot be shared out evenly."""
        if batch % (self.accumulate * self.processes.count):
            raise SettingsError(
                f"batch is {batch} over all; it must be a multiple of {self.accumulate} (accumulate) x "
                f"{self.processes.count} (processes)."
            )

    def rows(self, batch: int, there: int) -> list[range]:
        """The rows that this process computes, as many at a time as fit in memory.

        Args:
            batch: rows of a whole batch. there: rows of this one, which may be smaller.
        """
        count, rank = self.processes.count, self.processes.rank
        size = max(1, batch // (self.accumulate * count))
        return [range(start, min(start + size, there)) for start in range(rank * size, there, size * count)]


SIMPLE = Execution()
"""One process on the CPU that computes a batch at once."""
