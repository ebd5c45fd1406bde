"""What the block drafter remembers of the requests that are decoded together."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from torch import Tensor

from dflash_core.drafter.network import DraftNetwork
from dflash_core.drafter.pool import ContextPool, ContextRead
from dflash_core.drafter.queue import TapQueue
from dflash_core.drafter.slots import Ints
from dflash_core.upload import upload

QUEUE_LIMIT = 1024
"""Queued positions after which taps are projected at once; they are several times as large as K/V."""


class BlockContext:
    """A pool, and a queue of taps that have yet to go through the network into it.

    Every committed position is projected once at most, and not before a draft (or a full queue) asks for it.
    """

    def __init__(self, network: DraftNetwork, pool: ContextPool) -> None:
        self._network = network
        self.pool = pool
        self._queue = TapQueue()
        self._lengths: Ints = np.zeros(0, dtype=np.int64)

    @property
    def lengths(self) -> list[int]:
        """Committed positions a row, the anchor not among them."""
        lengths: list[int] = self._lengths.tolist()
        return lengths

    @property
    def queued(self) -> int:
        """Committed positions that are not in the pool yet."""
        return self._queue.size

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order: new row i is old row `rows[i]`. The others are released."""
        index = np.asarray(rows, dtype=np.int64)
        self._queue.keep_rows(index, len(self._lengths))
        self._lengths = self._lengths[index]
        self.pool.keep_rows(rows)

    def join(self, taps: Tensor) -> None:
        """Append a row with taps [T, P * D] of its T committed positions."""
        length, reach = len(taps), self.pool.reach
        first = 0 if reach is None else max(0, length - reach)
        row = len(self._lengths)
        self._lengths = np.append(self._lengths, length)
        self.pool.add_row()
        # a copy, so that a window does not hold the memory of a long prompt
        kept = taps[first:].clone() if first else taps
        self._push(kept, np.full(length - first, row), np.arange(first, length))

    def commit(self, taps: Tensor, nodes: Sequence[Sequence[int]]) -> None:
        """Append `taps[b, nodes[b]]` to each row b; taps are [B, N, P * D]."""
        counts = np.fromiter(map(len, nodes), np.int64, len(nodes))
        total = int(counts.sum())
        flat = np.fromiter(chain.from_iterable(nodes), np.int64, total)
        rows = np.repeat(np.arange(len(nodes)), counts)
        nth = np.arange(total) - np.repeat(counts.cumsum() - counts, counts)
        index = upload(rows * taps.shape[1] + flat, taps.device)
        accepted = taps.flatten(0, 1).index_select(0, index)
        positions = self._lengths[rows] + nth
        self._lengths = self._lengths + counts
        self._push(accepted, rows, positions)

    def read(self, rows: Ints | None) -> ContextRead:
        """The whole committed context of these rows (of all when `None`).

        Raises:
            RequestError: the pool is full.
        """
        self._flush()
        return self.pool.read(rows)

    def _push(self, taps: Tensor, rows: Ints, positions: Ints) -> None:
        self._queue.push(taps, rows, positions)
        if self._queue.size > QUEUE_LIMIT:
            self._flush()

    def _flush(self) -> None:
        if not self._queue.size:
            return
        reach = self.pool.reach
        pending = self._queue.peek(np.zeros_like(self._lengths) if reach is None else self._lengths - reach)
        positions = upload(pending.positions, self._network.device)
        features = self._network.context_features(pending.taps)
        k, v = self._network.context_kv(features, positions)
        self.pool.append(pending.rows, pending.positions, self._lengths, k, v)
        self._queue.clear()
