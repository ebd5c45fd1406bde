"""Prompts from files: conversations or plain text, each with where it came from."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core.errors import DFlashError

Message = tuple[str, str]
"""Role and content."""

ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
"""Names of roles in the wild -> those of chat templates."""


@dataclass(frozen=True)
class Prompt:
    """A conversation up to where the target answers.

    Attributes:
        messages: (role, content) in order; the last one is not the assistant's.
        source: where it came from, for the record.
    """

    messages: tuple[Message, ...]
    source: str

    @property
    def id(self) -> str:
        """The same for the same conversation, wherever it came from."""
        return hashlib.sha256(json.dumps(self.messages).encode()).hexdigest()[:24]

    @property
    def text(self) -> str:
        """What the messages say."""
        return "\n".join(content for _, content in self.messages)

    def chat(self) -> list[dict[str, str]]:
        """As chat templates take it."""
        return [{"role": role, "content": content} for role, content in self.messages]


def read_prompts(paths: Sequence[Path]) -> list[Prompt]:
    """All prompts of JSON-lines files, each conversation once, in the order of the files.

    A line is `{"messages": [{"role", "content"}, ...]}`, `{"conversations": [{"from", "value"}, ...]}` or
    `{"prompt": "..."}`, with an optional `source`. Answers at the end are left out: the target gives its own.

    Raises:
        DFlashError: a file cannot be read, or a line is none of these; the message names file and line.
    """
    found: dict[str, Prompt] = {}
    for path in paths:
        for prompt in _of_file(path):
            found.setdefault(prompt.id, prompt)
    return list(found.values())


def _of_file(path: Path) -> Iterator[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DFlashError(f"{path} cannot be read: {error}.") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _of_line(line, path, number)


def _of_line(line: str, path: Path, number: int) -> Prompt:
    try:
        record = json.loads(line)
        messages = _messages(record)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DFlashError(
            f'{path}, line {number}: expected {{"messages": [...]}}, {{"conversations": [...]}} or '
            f'{{"prompt": "..."}}, with strings as contents.'
        ) from None
    while messages and messages[-1][0] == "assistant":
        messages.pop()
    if not messages or not messages[-1][1].strip():
        raise DFlashError(f"{path}, line {number}: there is nothing to answer.")
    return Prompt(tuple(messages), str(record.get("source", path.name)))


def _messages(record: Mapping[str, Any]) -> list[Message]:
    if "prompt" in record:
        return [("user", _string(record["prompt"]))]
    if "messages" in record:
        return [(ROLES[one["role"]], _string(one["content"])) for one in _dicts(record["messages"])]
    return [(ROLES[one["from"]], _string(one["value"])) for one in _dicts(record["conversations"])]


def _dicts(value: Iterable[Any]) -> list[Mapping[str, Any]]:
    return list(value)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
