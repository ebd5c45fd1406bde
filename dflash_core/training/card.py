"""The model card of a trained draft: what it learnt from, how, and how well it did."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dflash_core.bench.prompts import SETS
from dflash_core.spec import DraftSpec
from dflash_core.training.batches import Corpus
from dflash_core.training.options import TrainOptions
from dflash_core.training.run import Progress

NAME = "README.md"
TITLES = {"humaneval": "HumanEval", "gsm8k": "GSM8K", "mtbench": "MT-bench"}


def model_card(
    target: str,
    spec: DraftSpec,
    corpus: Corpus,
    made: Mapping[str, Any],
    options: TrainOptions,
    lines: Sequence[Progress],
) -> str:
    """Markdown that goes beside the weights.

    Args:
        target: what it drafts for.
        made: the header of the answers: how they were made, and what their prompts were `compared` with.
        lines: the log of the run.
    """
    answers = len(corpus.training) + len(corpus.held_out)
    learnt = sum(int(shard.loss.sum()) for shard in corpus.shards)
    measured = [line for line in lines if line.acceptance_length is not None]
    taps = ", ".join(map(str, spec.taps))
    parts = [
        f"# DFlash draft for {target}",
        f"{_count(spec.num_layers, 'layer')}, taps {taps} of {spec.num_target_layers}, "
        f"block size {spec.block_size}, mask token {spec.mask_token_id}{_heads(spec)}. Trained by "
        "`dflash-core train`. It only guesses: the output is the target's own, whatever the draft says.",
        "## Data",
        f"{_count(answers, 'answer')} of the target itself, {learnt:,} tokens of them learnt, "
        f"{_count(len(corpus.held_out), 'answer')} held out. {_without(made.get('compared', ()))}",
        _table({name: value for name, value in made.items() if name != "compared"}),
        "## Recipe",
        _table({**asdict(options), "start": "/".join(Path(options.start).parts[-2:])}),
        "## Figures",
    ]
    if not lines:
        parts.append("Nothing was trained.")
    else:
        last = lines[-1]
        parts.append(
            f"{last.step:,} steps, {last.tokens:,} slots in {last.seconds:,.0f} s "
            f"({last.tokens / last.seconds:,.0f} a second). Mean loss of the last steps {last.loss:.3f}."
        )
    if measured:
        rows = {f"step {line.step}": f"{line.acceptance_length:.3f}" for line in _some(measured)}
        parts += [
            "Acceptance length on held-out answers, blocks at random places, the target's greedy tokens as "
            "truth:",
            _table(rows),
        ]
    return "\n\n".join(parts) + "\n"


def _without(compared: Collection[str]) -> str:
    """Which sets' questions are not among the prompts, and of which sets that is not known."""
    names = {name: TITLES.get(name, name) for name in SETS}
    known = [title for name, title in names.items() if name in compared]
    doubtful = [title for name, title in names.items() if name not in compared]
    sentences = [f"No question of {_either(known)} is among the prompts."] if known else []
    if doubtful:
        sentences.append(f"Whether questions of {_either(doubtful)} are among the prompts is not known.")
    return " ".join(sentences)


def _either(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _heads(spec: DraftSpec) -> str:
    found = [
        *([f"selector of rank {spec.selector.rank} and convolutions"] if spec.selector else ()),
        *([f"Markov head of rank {spec.markov.rank}"] if spec.markov else ()),
        *(["the anchor's slot predicts"] if spec.anchor_predicts else ()),
    ]
    return "".join(f", {part}" for part in found)


def _some(lines: Sequence[Progress], most: int = 8) -> Sequence[Progress]:
    """A few lines spread over all, the last among them."""
    step = -(-len(lines) // most)
    return lines[::-1][::step][::-1]


def _table(values: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {'-' if value is None else value} |" for name, value in values.items()]
    return "\n".join(["| | |", "|---|---|", *rows])
