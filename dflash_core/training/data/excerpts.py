"""Prompts from a folder of text or code: excerpts, and something to be done with each."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from dflash_core.errors import DFlashError
from dflash_core.training.data.prompts import Prompt

LANGUAGES = {
    **{".py": "Python", ".js": "JavaScript", ".ts": "TypeScript", ".java": "Java", ".c": "C", ".h": "C"},
    **{".cc": "C++", ".cpp": "C++", ".hpp": "C++", ".cu": "CUDA", ".go": "Go", ".rs": "Rust", ".rb": "Ruby"},
    **{".php": "PHP", ".cs": "C#", ".kt": "Kotlin", ".swift": "Swift", ".scala": "Scala", ".lua": "Lua"},
    **{".sh": "shell", ".sql": "SQL", ".r": "R", ".jl": "Julia", ".html": "HTML", ".css": "CSS"},
}
"""Suffix of a file of code -> what its language is called."""

TEXTS = (".txt", ".md", ".rst", ".tex", ".org", ".adoc")

CODE_TASKS = (
    "Explain what this {language} code does.\n\n```\n{excerpt}\n```",
    "Continue this {language} code.\n\n```\n{excerpt}",
    "What could go wrong in this {language} code, and how would you mend it?\n\n```\n{excerpt}\n```",
    "Write tests for this {language} code.\n\n```\n{excerpt}\n```",
    "Rewrite this {language} code so that it is easier to read.\n\n```\n{excerpt}\n```",
)
TEXT_TASKS = (
    "Continue this text.\n\n{excerpt}",
    "Summarise this text in a few sentences.\n\n{excerpt}",
    "Write three questions that this text answers, each with its answer.\n\n{excerpt}",
    "Say this in simpler words.\n\n{excerpt}",
    "{excerpt}\n\nWhat is the most important point here, and why?",
)

LONGEST = 1200
"""Characters of an excerpt; at some four to a token it leaves room for an answer."""

SHORTEST = 160
PER_FILE = 8
LARGEST = 4 << 20
"""Bytes of a file; larger ones are data, as a rule."""


def prompts_of_folder(
    folder: Path, seed: int = 0, longest: int = LONGEST, per_file: int = PER_FILE
) -> tuple[list[Prompt], int]:
    """Up to `per_file` excerpts of every file of text or code below a folder, each with a task drawn for it.

    What is drawn from a file depends on the seed, the file's name and its content, not on the other files.
    Hidden files and folders are passed over.

    Returns:
        The prompts in the order of the files' names, and how many files were left out because they are not
        UTF-8 text or too large.

    Raises:
        DFlashError: there is no such file, or one cannot be read.
    """
    prompts: list[Prompt] = []
    left_out = found = 0
    for path in _files(folder):
        found += 1
        text = _read(path)
        if text is None:
            left_out += 1
            continue
        name = path.relative_to(folder).as_posix()
        draw = random.Random(f"{seed}:{name}")
        pieces = cut(text, longest)
        chosen = sorted(draw.sample(range(len(pieces)), min(per_file, len(pieces))))
        prompts += [_ask(pieces[index], path, name, draw) for index in chosen]
    if not found:
        kinds = ", ".join((*TEXTS, *LANGUAGES))
        raise DFlashError(f"{folder} has no files of text or code; looked for are {kinds}.")
    return prompts, left_out


def cut(text: str, longest: int) -> list[str]:
    """Whole lines of a text, put together into pieces that do not overlap; short pieces are left out."""
    pieces: list[str] = []
    lines: list[str] = []
    size = 0
    for line in (part for whole in text.splitlines() for part in _parts(whole, longest)):
        if size + len(line) + 1 > longest:
            pieces.append("\n".join(lines))
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    pieces.append("\n".join(lines))
    least = min(SHORTEST, longest // 2)
    return [piece.strip("\n") for piece in pieces if len(piece.strip()) >= least]


def _parts(line: str, longest: int) -> Sequence[str]:
    """A line, or several where it is longer than an excerpt may be (a paragraph without breaks)."""
    width = longest - 1
    return [line[start : start + width] for start in range(0, len(line), width)] or [""]


def _ask(excerpt: str, path: Path, name: str, draw: random.Random) -> Prompt:
    language = LANGUAGES.get(path.suffix.lower())
    task = draw.choice(CODE_TASKS if language else TEXT_TASKS)
    return Prompt((("user", task.format(language=language, excerpt=excerpt)),), name)


def _files(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise DFlashError(f"{folder} cannot be read: {error.strerror}.") from None
    for path in entries:
        if path.name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        elif path.is_file() and path.suffix.lower() in (*LANGUAGES, *TEXTS):
            yield path


def _read(path: Path) -> str | None:
    try:
        data = path.read_bytes() if path.stat().st_size <= LARGEST else b"\0"
    except OSError as error:
        raise DFlashError(f"{path} cannot be read: {error.strerror}.") from None
    try:
        return None if b"\0" in data else data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
