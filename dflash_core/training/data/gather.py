"""All prompts of files and folders, each once."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_core.errors import DFlashError
from dflash_core.training.data.excerpts import LONGEST, PER_FILE, prompts_of_folder
from dflash_core.training.data.prompts import MalformedPromptError, Prompt, prompts_of_file


@dataclass(frozen=True)
class Gathered:
    """Prompts, and what was left out on the way.

    Attributes:
        duplicates: prompts that differed from an earlier one in white space at most.
        malformed: entries of files that are no prompts, and files of folders that are not text.
    """

    prompts: list[Prompt]
    duplicates: int
    malformed: int


def read_prompts(paths: Sequence[Path]) -> list[Prompt]:
    """`gather_prompts` with its defaults, the prompts alone."""
    return gather_prompts(paths).prompts


def gather_prompts(
    paths: Sequence[Path],
    *,
    lenient: bool = False,
    seed: int = 0,
    longest_excerpt: int = LONGEST,
    per_file: int = PER_FILE,
) -> Gathered:
    """The prompts of JSON files and of folders of text or code, in this order, each conversation once.

    Args:
        lenient: count entries of JSON files that are no prompts, instead of raising.
        seed, longest_excerpt, per_file: of excerpts, see `prompts_of_folder`.

    Raises:
        DFlashError: a file cannot be read, or an entry is no prompt; the message names file and line.
    """
    found: dict[tuple[str, ...], Prompt] = {}
    total = malformed = 0
    for path in paths:
        if path.is_dir():
            prompts, left_out = prompts_of_folder(path, seed, longest_excerpt, per_file)
            malformed += left_out
        else:
            prompts = []
            for entry in prompts_of_file(path):
                if not isinstance(entry, MalformedPromptError):
                    prompts.append(entry)
                elif lenient:
                    malformed += 1
                else:
                    raise entry
        total += len(prompts)
        for prompt in prompts:
            found.setdefault(prompt.likeness, prompt)
    if not found:
        raise DFlashError(f"There are no prompts in {', '.join(map(str, paths)) or 'nothing'}.")
    return Gathered(list(found.values()), total - len(found), malformed)


def choose(prompts: Sequence[Prompt], count: int, seed: int) -> list[Prompt]:
    """`count` prompts in their old order; a larger count keeps all that a smaller one chose."""

    def rank(prompt: Prompt) -> str:
        return hashlib.sha256(f"{seed}:{prompt.id}".encode()).hexdigest()

    kept = {prompt.id for prompt in sorted(prompts, key=rank)[:count]}
    return [prompt for prompt in prompts if prompt.id in kept]
