"""The training loop: random anchors, one parallel pass over their blocks, AdamW on a cosine."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor
from torch.nn import functional as F

from dflash_core.drafter.options import DTYPES, as_token_ids
from dflash_core.errors import DFlashError
from dflash_core.training.batches import Batch, Corpus, check_enough
from dflash_core.training.execution import SIMPLE, Execution
from dflash_core.training.feed import Feed
from dflash_core.training.loss import accepted, choice_loss, decay_weights, dpace_weights, head_loss
from dflash_core.training.model import Blocks, TrainableDraft
from dflash_core.training.options import TrainOptions
from dflash_core.training.processes import alike, anywhere
from dflash_core.training.run import Progress, load_state, log, save_state

EVERY = 50
"""Steps between lines of the log."""

SAY_EVERY = 30.0
"""Seconds between reports, at most; the first comes after the first step, to show that all is well."""


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
        execution: Execution = SIMPLE,
    ) -> None:
        """
        Args:
            model: moved to the device of the process.
            embedding: [V, D] of the target. head: [V, D], the target's.
            folder: claimed by `run.begin`.

        Raises:
            DFlashError: there are too few sequences for a single batch.
            SettingsError: a batch cannot be shared out evenly.
        """
        execution.check(options.batch)
        check_enough(len(corpus.training) + len(corpus.held_out), options.batch)
        if options.distill and any(shard.likely is None for shard in corpus.shards):
            raise DFlashError(
                f"distill is {options.distill}, but what the target thought likely is not there for every "
                "shard; compute it, or set distill to 0."
            )
        device = execution.processes.device
        self._execution = execution
        self._feed = Feed(corpus, options, execution)
        self._model = model.to(device)
        self._forward = torch.compile(model) if execution.compiled else model
        self._dtype = DTYPES[options.dtype]
        self._embedding = embedding.to(device, self._dtype)
        ids = None if options.draft_vocab is None else as_token_ids(options.draft_vocab, len(head))
        self._head = (head if ids is None else head[ids]).to(device, self._dtype).contiguous()
        # The head's row of each token, -1 for those that are not learnt; one more for "nothing to learn".
        self._rows = torch.full((len(head) + 1,), -1, device=device)
        self._tokens = (torch.arange(len(head)) if ids is None else ids).to(device)
        self._rows[self._tokens] = torch.arange(len(self._head), device=device)
        self._mask = self._embedding[model.spec.mask_token_id]
        self._options = options
        self._folder = folder
        self._decay = decay_weights(options.block_size, options.gamma).to(device)
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
            on_progress: called with every line of the log, and in between where that takes long.
            save_every: seconds between saves.
            keep_going: asked before every step; one process that shall not ends the run of all.

        Raises:
            DFlashError: the state cannot be saved, the loss is no longer finite, or the processes do not see
                the same files.
        """
        done = load_state(self._folder, self._model, self._optimizer) or Progress(0, 0.0, None, 0, 0.0)
        begin, saved, said = perf_counter() - done.seconds, perf_counter(), -math.inf
        losses = [*done.pending]
        step, tokens = done.step, done.tokens
        leads, processes = self._execution.leads, self._execution.processes
        if not (alike(processes, step) and alike(processes, len(self._feed.corpus.training))):
            raise DFlashError(
                f"Not all processes find the same answers, or the same state in {self._folder}; both must be "
                "on a disk that they share."
            )

        def reached() -> Progress:
            seconds = perf_counter() - begin
            return replace(done, step=step, tokens=tokens, seconds=seconds, pending=tuple(losses))

        for parts in self._feed.steps(step):
            if step >= self._options.steps or anywhere(processes, not keep_going()):
                break
            loss, count = self._step(parts, step)
            if not math.isfinite(loss):
                raise DFlashError(f"The loss is {loss} at step {step}; try a lower learning rate.")
            step, tokens = step + 1, tokens + count
            losses.append(loss)
            news = None
            if step % EVERY == 0 or step == self._options.steps:
                length = self.evaluate() if step % (10 * EVERY) == 0 or step == self._options.steps else None
                done = Progress(step, sum(losses) / len(losses), length, tokens, perf_counter() - begin)
                losses, news = [], done
                if leads:
                    log(self._folder, done)
            elif perf_counter() - said > SAY_EVERY:
                news = replace(reached(), loss=sum(losses) / len(losses), acceptance_length=None)
            if leads and news is not None:
                on_progress(news)
                said = perf_counter()
            if leads and perf_counter() - saved > save_every:
                self._save(reached())
                saved = perf_counter()
        done = reached()
        if leads:
            self._save(done)
        return done

    @torch.no_grad()
    def evaluate(self) -> float:
        """Acceptance length on held-out sequences, blocks at random anchors, the target's tokens as truth."""
        total = blocks = 0
        for batch in self._feed.held_out():
            _, _, right = self._loss(self._hidden(batch), batch, torch.zeros_like(batch.labels).float())
            whole = (batch.anchors >= 0) & (batch.labels[..., -1] >= 0)
            total += int(accepted(right)[whole].sum())
            blocks += int(whole.sum())
        processes = self._execution.processes
        sums = processes.sum(torch.tensor([total, blocks], device=processes.device))
        return 1.0 + int(sums[0]) / max(1, int(sums[1]))

    def _step(self, parts: Iterable[Batch], step: int) -> tuple[float, int]:
        """One update; the mean loss of a slot, and how many there were, over all parts and processes."""
        options, processes = self._options, self._execution.processes
        for group in self._optimizer.param_groups:
            group["lr"] = options.learning_rate * rate(step, options)
        self._optimizer.zero_grad(set_to_none=True)
        # What all slots weigh is known at the end only, so what those of the first parts weigh is the unit.
        unit = torch.ones(())
        sums = torch.zeros(3, device=processes.device)
        for number, batch in enumerate(parts):
            hidden = self._hidden(batch)
            weights = self._weights(hidden, batch)
            weight = weights.sum()
            if number == 0:
                unit = processes.sum(weight).clamp(min=1.0)
            loss, _, _ = self._loss(hidden, batch, weights / unit)
            loss.backward()
            sums += torch.stack([loss.detach(), weight, (batch.labels >= 0).sum()])
        loss, weight, slots = processes.sum(sums)
        factor = unit / weight.clamp(min=1.0)
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                parameter.grad = processes.sum(parameter.grad)
                if self._execution.accumulate > 1:
                    parameter.grad *= factor
        size = torch.nn.utils.clip_grad_norm_(self._model.parameters(), options.clip)
        if not math.isfinite(size):  # before it reaches the weights, and what is saved
            raise DFlashError(
                f"The gradient is {float(size)} at step {step}; try a lower learning rate, or float32."
            )
        self._optimizer.step()
        return float(loss * factor), int(slots)

    def _weights(self, hidden: Tensor, batch: Batch) -> Tensor:
        """[B, A, S - 1], what each slot weighs; 0 where there is nothing to learn."""
        weights = self._decay.expand(batch.labels.shape)
        if self._options.weighting == "dpace":
            with torch.no_grad():
                _, log_probs, _ = self._loss(hidden.detach(), batch, torch.zeros_like(weights))
            known = self._rows[batch.labels] >= 0
            weights = dpace_weights(torch.where(known, log_probs.exp(), 0.0), batch.labels >= 0)
        return torch.where(batch.labels >= 0, weights, 0.0)

    def _hidden(self, batch: Batch) -> Tensor:
        """[B, A, S - 1, D] of the slots that predict a draft, the anchor's among them where it does."""
        early = int(self._model.spec.anchor_predicts)
        shape = (*batch.anchors.shape, self._options.block_size - 1 - early, len(self._mask))
        first = F.embedding(batch.anchor_tokens, self._embedding)[:, :, None]
        embeddings = torch.cat([first, self._mask.expand(shape)], 2)
        # Without gradients it would be compiled once more, for a few held-out batches.
        forward = self._forward if torch.is_grad_enabled() else self._model
        hidden: Tensor = forward(Blocks(batch.taps, embeddings, batch.anchors), self._dtype)
        return hidden[:, :, 1 - early :]

    def _loss(self, hidden: Tensor, batch: Batch, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, and per slot the log-probability of its token and whether it was the best."""
        labels = self._rows[batch.labels]
        rows, flat, weight = hidden.reshape(-1, hidden.shape[-1]), labels.flatten(), weights.flatten()
        keep = min(self._model.candidates, len(self._head))
        own, others, shares = self._split(batch, weight)
        loss, log_probs, right, best = head_loss(rows, self._head, flat, own, keep, others, shares)
        if keep:
            # Both are learnt: the marginals say which tokens are candidates, the choice which one it is.
            chosen, log_probs, right = choice_loss(self._scores(rows, batch, best), best, flat, weight)
            loss = loss + chosen
        return loss, log_probs.view(labels.shape), right.view(labels.shape)

    def _split(self, batch: Batch, weights: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Weights [N] of slots, shared out: to the label [N], and to what was likely [N, K] with its rows."""
        share = self._options.distill
        if not share or batch.likely is None:
            return weights, None, None
        others, probs = batch.likely.among(self._rows)
        return (1 - share) * weights, others.flatten(0, -2), share * weights[:, None] * probs.flatten(0, -2)

    def _scores(self, hidden: Tensor, batch: Batch, best: Tensor) -> Tensor:
        """[N, K] of the candidates `best` [N, K] (rows of the head), after the true tokens before N slots."""
        own = (self._head[best] @ hidden[..., None])[..., 0].float()
        before = torch.cat([batch.anchor_tokens[..., None], batch.labels[..., :-1].clamp(min=0)], -1)
        return own + self._model.pull(hidden, before.flatten(), self._tokens[best])

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
