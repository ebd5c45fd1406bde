"""What is asked in a benchmark: built-in sets and files, in an order that a seed fixes."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core.bench.figures import ALL
from dflash_core.bench.prompts import SETS, load_prompts
from dflash_core.errors import SettingsError

Message = Mapping[str, str]


@dataclass(frozen=True)
class Ask:
    """One request, before it is turned into token ids.

    Attributes:
        id: unique within a benchmark, e.g. "gsm8k/3".
        group: the set it belongs to; figures are given for each set.
        messages: a conversation for the chat template; empty when `prompt` is the text as it stands.
    """

    id: str
    group: str
    messages: tuple[Message, ...] = ()
    prompt: str = ""


def gather(sets: Sequence[str], files: Sequence[Path], count: int | None, seed: int) -> list[Ask]:
    """All requests, each set in a shuffled order of its own and the sets taking turns.

    A machine that drifts then slows all sets alike, and a run cut short has seen all of them.

    Args:
        sets: names of built-in sets. files: JSON lines, see `read_asks`.
        count: requests of each set, spread evenly over it; all of them when `None`.

    Raises:
        SettingsError: a set is unknown, a file is malformed, its name is taken, or nothing is asked.
    """
    groups = [_of_set(name, count) for name in dict.fromkeys(sets)]
    for path in files:
        if path.stem == ALL:
            raise SettingsError(f"{path}: {ALL!r} is the name of the row over all sets; rename the file.")
        asks = read_asks(path)
        if any(group and group[0].group == asks[0].group for group in groups):
            raise SettingsError(f"Two sets are called {asks[0].group!r}; rename one of the files.")
        groups.append(_spread(asks, count))
    if not any(groups):
        known = ", ".join(SETS)
        raise SettingsError(f"There is nothing to ask. Give --set ({known}) or --requests FILE.jsonl.")
    for group in groups:
        random.Random(f"{seed}/{group[0].group}").shuffle(group)
    longest = max(len(group) for group in groups)
    return [group[index] for index in range(longest) for group in groups if index < len(group)]


def read_asks(path: Path) -> list[Ask]:
    """Requests of a file of JSON lines; the file's name, without its ending, is the name of the set.

    A line is `{"messages": [{"role": ..., "content": ...}, ...]}`, `{"prompt": "..."}` for one message of a
    user, or `{"text": "..."}` for text as it stands, without a chat template; `id` is optional.

    Raises:
        SettingsError: the file cannot be read, has no line, or a line is none of these.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}.") from None
    asks = [_of_line(line, path, number) for number, line in enumerate(lines, start=1) if line.strip()]
    if not asks:
        raise SettingsError(f"{path} has no requests; it needs at least one line of JSON.")
    known: set[str] = set()
    for ask in asks:
        if ask.id in known:
            raise SettingsError(
                f"{path}: the id {ask.id.split('/', 1)[1]!r} is there twice; ids must differ."
            )
        known.add(ask.id)
    return asks


def _of_set(name: str, count: int | None) -> list[Ask]:
    prompts = load_prompts(name, count)
    return [Ask(f"{name}/{index}", name, tuple(messages)) for index, messages in enumerate(prompts)]


def _spread(asks: list[Ask], count: int | None) -> list[Ask]:
    count = len(asks) if count is None else min(count, len(asks))
    return [asks[index * len(asks) // count] for index in range(count)]


def _of_line(line: str, path: Path, number: int) -> Ask:
    try:
        record = json.loads(line)
        id = f"{path.stem}/{record.get('id', number)}"
        if "messages" in record:
            messages = tuple(
                {"role": _text(m["role"]), "content": _text(m["content"])} for m in record["messages"]
            )
            if messages:
                return Ask(id, path.stem, messages)
        elif "prompt" in record:
            return Ask(id, path.stem, ({"role": "user", "content": _text(record["prompt"])},))
        elif _text(record["text"]):
            return Ask(id, path.stem, prompt=record["text"])
    except UnicodeEncodeError:
        raise SettingsError(
            f"{path}, line {number}: the text has one half of a surrogate pair, which no tokenizer can read; "
            "mend the escape (\\ud800 to \\udfff come in pairs)."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise SettingsError(
        f'{path}, line {number}: expected {{"messages": [{{"role": ..., "content": ...}}]}}, '
        f'{{"prompt": "..."}} or {{"text": "..."}}.'
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # JSON can spell what is no text
    return value
