"""Prompts from files: conversations or plain text, each with where it came from."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core.errors import DFlashError

Message = tuple[str, str]
"""Role and content."""

ROLES = {
    **{"human": "user", "user": "user", "system": "system"},
    **{"gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant", "model": "assistant"},
}
"""Names of roles in the wild -> those of chat templates."""

SHAPES = (
    '{"messages": [{"role": "user", "content": "..."}]}, '
    '{"conversations": [{"from": "human", "value": "..."}]} or {"prompt": "..."}'
)

NESTED = "is nested too deeply to be read"


class MalformedPromptError(DFlashError):
    """An entry of a file that is no prompt; the message names the file and the line."""


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
    def likeness(self) -> tuple[str, ...]:
        """Equal for conversations that differ in white space only."""
        return tuple(part for role, content in self.messages for part in (role, " ".join(content.split())))

    @property
    def text(self) -> str:
        """What the messages say."""
        return "\n".join(content for _, content in self.messages)

    def chat(self) -> list[dict[str, str]]:
        """As chat templates take it."""
        return [{"role": role, "content": content} for role, content in self.messages]


def prompts_of_file(path: Path) -> Iterator[Prompt | MalformedPromptError]:
    """The prompts of a file of JSON lines, or of one JSON list, in order.

    An entry is `{"messages": [{"role", "content"}, ...]}`, `{"conversations": [{"from", "value"}, ...]}` (as
    in ShareGPT) or `{"prompt": "..."}`, with an optional `source`. Answers at the end are left out: the
    target gives its own. An entry that is none of these is yielded as an error, to be raised or counted.

    Raises:
        DFlashError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.read(1)
            file.seek(0)
            if first == "[":
                for number, record in enumerate(_list(path, file.read()), start=1):
                    yield _prompt(record, path, f"entry {number}")
                return
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _of_line(line, path, number)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 text: {error}"
        raise DFlashError(f"{path} cannot be read: {reason}.") from None


def _list(path: Path, text: str) -> list[Any]:
    try:
        records = json.loads(text)
    except ValueError as error:
        raise DFlashError(f"{path} begins like a JSON list and is not one: {error}.") from None
    except RecursionError:
        raise DFlashError(f"{path} begins like a JSON list and {NESTED}. Expected is {SHAPES}.") from None
    return list(records)


def _of_line(line: str, path: Path, number: int) -> Prompt | MalformedPromptError:
    try:
        record = json.loads(line)
    except ValueError as error:
        return MalformedPromptError(f"{path}, line {number} is not JSON: {error}. Expected is {SHAPES}.")
    except RecursionError:
        return MalformedPromptError(f"{path}, line {number} {NESTED}. Expected is {SHAPES}.")
    return _prompt(record, path, f"line {number}")


def _prompt(record: object, path: Path, where: str) -> Prompt | MalformedPromptError:
    try:
        messages = _messages(record)
    except (KeyError, TypeError, AttributeError):
        return MalformedPromptError(
            f"{path}, {where} is no prompt. Expected is {SHAPES}, with strings as contents."
        )
    except ValueError as error:
        return MalformedPromptError(f"{path}, {where}: {error}")
    while messages and messages[-1][0] == "assistant":
        messages.pop()
    if not messages or messages[-1][0] != "user" or not messages[-1][1].strip():
        return MalformedPromptError(
            f"{path}, {where}: there is nothing to answer; a user's message must be last."
        )
    source = record.get("source") if isinstance(record, Mapping) else None
    named = isinstance(source, str | int | float) and source
    return Prompt(tuple(messages), str(named or path.name))


def _messages(record: Any) -> list[Message]:
    if "prompt" in record:
        return [("user", _text(record["prompt"]))]
    turns = record["messages"] if "messages" in record else record["conversations"]
    return [_message(turn) for turn in turns]


def _message(turn: Mapping[str, Any]) -> Message:
    role, content = (turn["role"], turn["content"]) if "role" in turn else (turn["from"], turn["value"])
    if role not in ROLES:
        raise ValueError(f"the role {role!r} is not known; known are {', '.join(ROLES)}.")
    return ROLES[role], _text(content)


def _text(content: Any) -> str:
    """A string, or the text parts of a list of parts."""
    parts = [part["text"] for part in content] if isinstance(content, list) else [content]
    if not all(isinstance(part, str) for part in parts):
        raise TypeError
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # Such a string is JSON, but no tokenizer takes it.
        raise ValueError(
            f"the character at {error.start} of a text is half of a surrogate pair; "
            "write the whole pair, or leave it out."
        ) from None
    return text
