"""Where the time of a training step goes: the share of products of matrices, and tokens a second.

    python benchmarks/training_step.py
    python benchmarks/training_step.py --data answers --batch 16 --anchors 40 --dtype bfloat16 --json

A step is what the trainer does with a batch: forward, loss, backward, clipping and AdamW. Hidden states are
computed before, since a run reads them from disk. Tokens a second are those of steps without the profiler.
Without --data the tokens are made up, which takes as long to learn as any others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter

import torch
from torch.profiler import ProfilerActivity, profile

import dflash_core
from dflash_core.checkpoint.load import load_checkpoint
from dflash_core.cli.train import dtype_on
from dflash_core.demo import TARGET, draft_folder, draft_vocab_file
from dflash_core.target import TargetModel
from dflash_core.training.batches import HELD_OUT, Batch, Corpus
from dflash_core.training.data.store import Sequences, read_sequences
from dflash_core.training.execution import Execution
from dflash_core.training.features import OnTheFly, Shard
from dflash_core.training.ground import take_ground
from dflash_core.training.model import TrainableDraft
from dflash_core.training.options import TrainOptions
from dflash_core.training.processes import joined
from dflash_core.training.trainer import Trainer

PRODUCTS = (
    *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::mkldnn_linear"),
    *("mkldnn::", "aten::_scaled_dot_product", "aten::_flash_attention", "aten::_efficient_attention"),
)
"""How the operations begin that are products of matrices, those of attention among them."""


def made_up(count: int, length: int, vocabulary: int) -> Sequences:
    """Random tokens, the first eighth of each sequence a prompt."""
    tokens = torch.randint(0, vocabulary, (count, length), generator=torch.Generator().manual_seed(0))
    loss = (torch.arange(length) >= length // 8).expand(count, length)
    return Sequences(tokens.int().flatten(), loss.flatten(), torch.arange(count + 1) * length)


def is_product(operation: str) -> bool:
    return operation.startswith(PRODUCTS)


def shares(profiled: profile, gpu: bool) -> dict[str, float]:
    """Operation -> its share of the time of all, without what it calls; most first."""
    # A GPU's kernels are listed as well, but their time is that of the operations which launched them.
    rows = [row for row in profiled.key_averages() if row.device_type.name == "CPU"]
    spent = {row.key: float(row.self_device_time_total if gpu else row.self_cpu_time_total) for row in rows}
    total = sum(spent.values())
    return {name: spent[name] / total for name in sorted(spent, key=lambda name: -spent[name])}


def run(trainer: Trainer, batches: Sequence[Sequence[Batch]]) -> tuple[int, float]:
    """Tokens learnt, and seconds."""
    begin, tokens = perf_counter(), 0
    for step, parts in enumerate(batches):
        tokens += trainer._step(parts, step)[1]  # which waits for the device, since it returns the loss
    return tokens, perf_counter() - begin


def prepared(
    arguments: argparse.Namespace, target: TargetModel, execution: Execution
) -> tuple[Trainer, Iterator[Sequence[Batch]]]:
    """A trainer of the draft as it is, and its batches, one after the other."""
    draft = load_checkpoint(arguments.draft)
    own = arguments.draft == draft_folder()
    options = TrainOptions(
        batch=arguments.batch,
        anchors=arguments.anchors,
        block_size=draft.spec.block_size,
        draft_vocab=str(draft_vocab_file()) if own else None,
        dtype=dtype_on(execution.processes.device, arguments.dtype),
    )
    if arguments.data is None:
        count = arguments.batch * (2 * arguments.steps + 1)
        answers = made_up(count + count // (HELD_OUT - 1) + 1, arguments.tokens, target.info.vocab_size)
    else:
        answers = read_sequences(arguments.data)
    features = OnTheFly(target, draft.spec.taps, answers.tokens)
    corpus = Corpus.of([Shard(answers.tokens, answers.loss, answers.offsets, features)])
    ground = take_ground(target, draft.spec, answers, draft.tensors, options.seed)
    model = TrainableDraft(draft.spec, ground.weights)
    # Nothing is saved, so it needs no folder.
    trainer = Trainer(model, corpus, ground.embedding, ground.head, options, Path(), execution)
    return trainer, (list(parts) for parts in trainer._feed.steps(0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default=TARGET)
    parser.add_argument("--draft", type=Path, default=draft_folder(), help="a draft for it, to go on from")
    parser.add_argument("--data", type=Path, default=None, help="folder that `dflash-core data` wrote")
    parser.add_argument("--tokens", type=int, default=192, help="of a sequence that is made up")
    parser.add_argument("--steps", type=int, default=2, help="steps that are timed, and as many profiled")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--anchors", type=int, default=32)
    parser.add_argument("--dtype", default=None)
    parser.add_argument("--device", default=None)
    parser.add_argument("--json", action="store_true", help="print JSON, with every operation's share")
    arguments = parser.parse_args()

    with joined(arguments.device) as processes:
        dtype = dtype_on(processes.device, arguments.dtype)
        where = processes.device
        target = dflash_core.load_target(
            arguments.target, dtype=dtype, fast="off", calibrate=False, device=where
        )
        trainer, feed = prepared(arguments, target, Execution(processes))
        first, *batches = islice(feed, 1 + 2 * arguments.steps)
        run(trainer, [first])  # buffers of the optimiser, and whatever else comes once
        tokens, seconds = run(trainer, batches[: arguments.steps])
        gpu = where.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
        with profile(activities=activities) as profiled:
            run(trainer, batches[arguments.steps :])

    found = shares(profiled, gpu)
    products = sum(share for name, share in found.items() if is_product(name))
    if arguments.json:
        summary = {
            **{"device": str(where), "dtype": dtype, "steps": arguments.steps, "batch": arguments.batch},
            **{"tokens_per_second": tokens / seconds, "matrix_products": products, "shares": found},
        }
        print(json.dumps(summary, indent=1))
        return
    print(
        f"{arguments.steps} steps of {arguments.batch} sequences in {dtype} on {where}: "
        f"{tokens / seconds:.0f} tokens/s, {products:.1%} of the time in products of matrices"
    )
    for name, share in islice(found.items(), 12):
        print(f"{share:6.1%}  {name}{'  (product)' if is_product(name) else ''}")


if __name__ == "__main__":
    main()
