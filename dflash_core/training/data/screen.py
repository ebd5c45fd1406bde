"""Keeps benchmark questions, and whatever else is named, out of training prompts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_core.training.data.gather import read_prompts
from dflash_core.training.data.overlap import Overlap, benchmark_sets
from dflash_core.training.data.prompts import Prompt


@dataclass(frozen=True)
class Screened:
    """Prompts that repeat none of the questions they were compared with.

    Attributes:
        overlaps: prompts left out, by the set (or file) that they repeat a question of; sets without any
            are there with 0.
        not_compared: sets that could not be read, and why.
    """

    prompts: list[Prompt]
    overlaps: Mapping[str, int]
    not_compared: Mapping[str, str]


def screen(prompts: Sequence[Prompt], keep_out: Sequence[Path] = ()) -> Screened:
    """Compare prompts with the built-in benchmark sets and with files of further prompts.

    Args:
        keep_out: files or folders as `read_prompts` takes them, e.g. a held-out set of one's own.

    Raises:
        DFlashError: a file of `keep_out` cannot be read.
    """
    sets = benchmark_sets()
    own = {str(path): [prompt.text for prompt in read_prompts([path])] for path in keep_out}
    questions = {**sets.questions, **own}
    overlap = Overlap(questions)
    found = {prompt.id: overlap(prompt.text) for prompt in prompts}
    counts = Counter(name for name in found.values() if name is not None)
    kept = [prompt for prompt in prompts if found[prompt.id] is None]
    return Screened(kept, {name: counts[name] for name in questions}, sets.missing)
