"""What a process is given to compute, step by step: its rows of every batch, on its device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dflash_core.training.batches import Batch, Corpus, collate, epoch, noise
from dflash_core.training.execution import Execution
from dflash_core.training.options import TrainOptions

EVALUATED = 64
"""Held-out batches that the acceptance length is measured on, at most."""


@dataclass(frozen=True)
class Feed:
    """Batches that follow from the seed, the step and the place in the batch, whoever computes them."""

    corpus: Corpus
    options: TrainOptions
    execution: Execution

    def steps(self, step: int) -> Iterator[Iterator[Batch]]:
        """From a step on, without end: of each step the parts that this process computes one by one."""
        options = self.options
        number, skip = divmod(step, len(self.corpus.training) // options.batch)
        while True:
            for chosen in epoch(self.corpus, options.batch, options.seed, number)[skip:]:
                yield self._parts(chosen, options.seed * 7_919 + step, options.seed * 104_729 + step)
                step += 1
            number, skip = number + 1, 0

    def held_out(self) -> Iterator[Batch]:
        """This process's rows of batches of held-out sequences, without noise."""
        size = self.options.batch
        chosen = sorted(self.corpus.held_out, key=self.corpus.length)
        for number in range(0, min(len(chosen), EVALUATED * size), size):
            yield from self._parts(chosen[number : number + size], number, None)

    def _parts(self, chosen: Sequence[tuple[int, int]], seed: int, noise_seed: int | None) -> Iterator[Batch]:
        options = self.options
        for rows in self.execution.rows(options.batch, len(chosen)):
            batch = collate(self.corpus, chosen, options.anchors, options.block_size, seed, rows)
            if options.noise and noise_seed is not None:
                added = noise(batch.taps, rows, options.noise, noise_seed)
                batch = replace(batch, taps=batch.taps + added)
            yield batch.to(self.execution.processes.device)
