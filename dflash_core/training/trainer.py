"""The training loop: random anchors, one parallel pass over their blocks, AdamW on a cosine."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_core.drafter.options import DTYPES, as_token_ids
from dflash_core.errors import DFlashError
from dflash_core.training.batches import Batch, Corpus, collate, epoch
from dflash_core.training.loss import accepted, decay_weights, dpace_weights, head_loss
from dflash_core.training.model import Blocks, TrainableDraft
from dflash_core.training.options import TrainOptions
from dflash_core.training.run import Progress, load_state, log, save_state

EVALUATED = 64
"""Held-out batches that the acceptance length is measured on, at most."""

EVERY = 50
"""Steps between lines of the log."""


class Trainer:
    """One run. Everything random follows from the seed and the step, so a resumed run is the same run."""

    def __init__(
        self,
        model: TrainableDraft,
        corpus: Corpus,
        embedding: Tensor,
        head: Tensor,
        options: TrainOptions,
        folder: Path,
    ) -> None:
        """
        Args:
            embedding: [V, D] of the target. head: [V, D], the target's.
            folder: claimed by `run.begin`.

        Raises:
            DFlashError: there are too few sequences for a single batch.
        """
        if len(corpus.training) < options.batch or not corpus.held_out:
            raise DFlashError(
                f"There are {len(corpus.training)} training sequences, fewer than a batch ({options.batch}); "
                "make more answers or smaller batches."
            )
        if options.distill and any(shard.likely is None for shard in corpus.shards):
            raise DFlashError(
                f"distill is {options.distill}, but what the target thought likely is not there for every "
                "shard; compute it, or set distill to 0."
            )
        self._model = model
        self._corpus = corpus
        self._dtype = DTYPES[options.dtype]
        self._embedding = embedding.to(self._dtype)
        ids = None if options.draft_vocab is None else as_token_ids(options.draft_vocab, len(head))
        self._head = (head if ids is None else head[ids]).to(self._dtype).contiguous()
        # The head's row of each token, -1 for those that are not learnt; one more for "nothing to learn".
        self._rows = torch.full((len(head) + 1,), -1)
        self._rows[torch.arange(len(head)) if ids is None else ids] = torch.arange(len(self._head))
        self._mask = self._embedding[model.spec.mask_token_id]
        self._options = options
        self._folder = folder
        self._decay = decay_weights(options.block_size, options.gamma)
        self._optimizer = torch.optim.AdamW(
            self._groups(), lr=options.learning_rate, betas=(0.9, 0.95), fused=True
        )

    def train(
        self,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        save_every: float = 120.0,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> Progress:
        """Train to the last step, or until told to stop; saves on the way and at the end.

        Args:
            on_progress: called with every line of the log.
            save_every: seconds between saves.
            keep_going: asked before every step.

        Raises:
            DFlashError: the state cannot be saved, or the loss is no longer finite.
        """
        done = load_state(self._folder, self._model, self._optimizer) or Progress(0, 0.0, None, 0, 0.0)
        begin, saved = perf_counter() - done.seconds, perf_counter()
        losses = [*done.pending]
        step, tokens = done.step, done.tokens

        def reached() -> Progress:
            seconds = perf_counter() - begin
            return replace(done, step=step, tokens=tokens, seconds=seconds, pending=tuple(losses))

        for batch in self._batches(step):
            if step >= self._options.steps or not keep_going():
                break
            loss, count = self._step(batch, step)
            if not math.isfinite(loss):
                raise DFlashError(f"The loss is {loss} at step {step}; try a lower learning rate.")
            step, tokens = step + 1, tokens + count
            losses.append(loss)
            if step % EVERY == 0 or step == self._options.steps:
                length = self.evaluate() if step % (10 * EVERY) == 0 or step == self._options.steps else None
                done = Progress(step, sum(losses) / len(losses), length, tokens, perf_counter() - begin)
                losses = []
                log(self._folder, done)
                on_progress(done)
            if perf_counter() - saved > save_every:
                self._save(reached())
                saved = perf_counter()
        done = reached()
        self._save(done)
        return done

    @torch.no_grad()
    def evaluate(self) -> float:
        """Acceptance length on held-out sequences, blocks at random anchors, the target's tokens as truth."""
        size, slots = self._options.batch, self._options.block_size
        held_out = sorted(self._corpus.held_out, key=self._corpus.length)
        total = blocks = 0
        for number in range(0, min(len(held_out), EVALUATED * size), size):
            batch = collate(
                self._corpus, held_out[number : number + size], self._options.anchors, slots, number
            )
            hidden = self._hidden(batch.taps, batch)
            _, _, right = self._loss(hidden, batch, torch.zeros(batch.labels.shape))
            whole = (batch.anchors >= 0) & (batch.labels[..., -1] >= 0)
            total += int(accepted(right)[whole].sum())
            blocks += int(whole.sum())
        return 1.0 + total / max(1, blocks)

    def _batches(self, step: int) -> Iterator[Batch]:
        """Batches from a step on, without end."""
        options = self._options
        number, skip = divmod(step, len(self._corpus.training) // options.batch)
        while True:
            for chosen in epoch(self._corpus, options.batch, options.seed, number)[skip:]:
                yield collate(
                    self._corpus, chosen, options.anchors, options.block_size, options.seed * 7_919 + step
                )
                step += 1
            number, skip = number + 1, 0

    def _step(self, batch: Batch, step: int) -> tuple[float, int]:
        """One update; the mean loss of a slot, and how many there were."""
        options = self._options
        for group in self._optimizer.param_groups:
            group["lr"] = options.learning_rate * rate(step, options)
        taps = batch.taps
        if options.noise:
            generator = torch.Generator().manual_seed(options.seed * 104_729 + step)
            size = taps.float().square().mean(-1, keepdim=True).sqrt() * options.noise
            taps = taps + (torch.randn(taps.shape, generator=generator) * size).to(taps.dtype)
        hidden = self._hidden(taps, batch)
        there = batch.labels >= 0
        weights = self._decay.expand(batch.labels.shape)
        if options.weighting == "dpace":
            with torch.no_grad():
                _, log_probs, _ = self._loss(hidden.detach(), batch, torch.zeros(batch.labels.shape))
            weights = dpace_weights(log_probs.exp())
        weights = torch.where(there, weights, 0.0)
        weights = weights / weights.sum().clamp(min=1.0)
        loss, _, _ = self._loss(hidden, batch, weights)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), options.clip)
        self._optimizer.step()
        return float(loss.detach()), int(there.sum())

    def _hidden(self, taps: Tensor, batch: Batch) -> Tensor:
        """[B, A, S - 1, D] of the drafted slots."""
        shape = (*batch.anchors.shape, self._options.block_size - 1, len(self._mask))
        first = F.embedding(batch.anchor_tokens, self._embedding)[:, :, None]
        embeddings = torch.cat([first, self._mask.expand(shape)], 2)
        hidden: Tensor = self._model(Blocks(taps, embeddings, batch.anchors), self._dtype)
        return hidden[:, :, 1:]

    def _loss(self, hidden: Tensor, batch: Batch, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, and per slot the log-probability of its token and whether it was the best."""
        labels = self._rows[batch.labels]
        rows = hidden.reshape(-1, hidden.shape[-1])
        own, others, shares = self._split(batch, weights.flatten())
        loss, log_probs, right = head_loss(rows, self._head, labels.flatten(), own, others, shares)
        return loss, log_probs.view(labels.shape), right.view(labels.shape)

    def _split(self, batch: Batch, weights: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Weights [N] of slots, shared out: to the label [N], and to what was likely [N, K] with its rows."""
        share = self._options.distill
        if not share or batch.likely is None:
            return weights, None, None
        others, probs = batch.likely.among(self._rows)
        return (1 - share) * weights, others.flatten(0, -2), share * weights[:, None] * probs.flatten(0, -2)

    def _groups(self) -> list[dict[str, object]]:
        """Norms, convolutions and codebooks are not pulled towards zero."""
        names = self._model.names
        decayed = [name for name in names if name.endswith("proj.weight") or name == "fc.weight"]
        return [
            {
                "params": [self._model.parameter(name) for name in decayed],
                "weight_decay": self._options.weight_decay,
            },
            {"params": [self._model.parameter(n) for n in names if n not in decayed], "weight_decay": 0.0},
        ]

    def _save(self, progress: Progress) -> None:
        save_state(self._folder, self._model, self._optimizer, progress)


def rate(step: int, options: TrainOptions) -> float:
    """The learning rate's factor: a linear warm-up, then half a cosine down to a fiftieth."""
    warm = max(1, round(options.warmup * options.steps))
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(1, options.steps - warm)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
