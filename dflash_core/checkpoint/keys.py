"""Typed reading of a config that remembers what was read, so that nothing is read and ignored."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from dflash_core.errors import CheckpointError

T = TypeVar("T")

SHOWN = 80
"""Characters of a value that a message repeats."""
PLURAL = {int: "integers", str: "strings"}


def show(value: object) -> str:
    """A value for a message: JSON's words for constants, printable characters only, shortened."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**SHOWN:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, Mapping):
        return f"an object of {len(value)} keys"
    if isinstance(value, list) and len(value) > 16:
        return f"a list of {len(value)}"
    if isinstance(value, list):
        return shortened("[" + ", ".join(show(entry) for entry in value) + "]")
    return shortened(ascii(value))


def shortened(text: str) -> str:
    """Text for a message, cut in the middle when it is long."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]}...{text[-SHOWN // 4 :]}"


def label(key: str) -> str:
    """A key or a tensor name from a file, safe to print."""
    return shortened(ascii(key)[1:-1] or '""')


def nearest(word: str, known: Collection[str]) -> str:
    """A sentence that suggests the nearest known name, or nothing."""
    near = get_close_matches(word[:SHOWN], known, 1)
    return f" Did you mean {near[0]}?" if near else ""


def same(left: object, right: object) -> bool:
    """Equality that, unlike Python's, does not take `true` for 1."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


@dataclass
class Source:
    """One JSON object in which keys are looked up.

    Attributes:
        prefix: how its keys are named in messages, e.g. `dflash_config.`.
        values: the object.
        inert: keys that change nothing about what the draft computes and may stand there unread.
    """

    prefix: str
    values: Mapping[str, Any]
    inert: Collection[str] = ()
    read: set[str] = field(default_factory=set)


@dataclass
class Keys:
    """Looks keys up in several objects, the first first. `null` counts as absent.

    A key that two objects give different values is an error: programs disagree about which one counts.
    """

    where: str
    sources: Sequence[Source]
    known: set[str] = field(default_factory=set)

    def fail(self, key: str, message: str) -> NoReturn:
        """Raise about a key; the message continues a sentence that begins with its name."""
        raise CheckpointError(f"{self.where}: {self.name(key)} {message}")

    def name(self, key: str) -> str:
        """The key with the prefix of the object in which it stands."""
        holders = [source for source in self.sources if source.values.get(key) is not None]
        return f"{holders[0].prefix if holders else self.sources[-1].prefix}{label(key)}"

    def find(self, key: str) -> Any:
        """The raw value, or `None`."""
        self.known.add(key)
        found: list[tuple[str, Any]] = []
        for source in self.sources:
            if key in source.values:
                source.read.add(key)
                if (value := source.values[key]) is not None:
                    found.append((source.prefix + key, value))
        for name, value in found[1:]:
            if not same(value, found[0][1]):
                self.fail(
                    key, f"is {show(found[0][1])}, but {name} is {show(value)}. Remove the one that is wrong."
                )
        return found[0][1] if found else None

    def maybe_integer(self, key: str, low: int, high: int) -> int | None:
        """An integer from `low` to `high`, or `None` where the key is absent."""
        value = self.find(key)
        if value is not None and (type(value) is not int or not low <= value <= high):
            self.fail(key, f"is {show(value)}; it must be an integer from {low} to {high}.")
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        """A required integer from `low` to `high`."""
        return self._required(key, self.maybe_integer(key, low, high), f"an integer from {low} to {high}")

    def maybe_number(self, key: str, low: float = 0.0, high: float = 1e15) -> float | None:
        """A number above `low` and up to `high`, or `None` where the key is absent."""
        value = self.find(key)
        if value is None:
            return None
        if type(value) not in (int, float) or not low < value <= high or not math.isfinite(value):
            self.fail(key, f"is {show(value)}; it must be a number above {low:g} and up to {high:g}.")
        return float(value)

    def number(self, key: str, low: float = 0.0, high: float = 1e15) -> float:
        """A required number above `low` and up to `high`."""
        return self._required(key, self.maybe_number(key, low, high), f"a number above {low:g}")

    def maybe_flag(self, key: str) -> bool | None:
        """A boolean, or `None` where the key is absent."""
        value = self.find(key)
        if value is not None and type(value) is not bool:
            self.fail(key, f"is {show(value)}; it must be true or false.")
        return value

    def maybe_text(self, key: str, allowed: Collection[str] = ()) -> str | None:
        """A string, one of `allowed` where that is given, or `None` where the key is absent."""
        value = self.find(key)
        if value is not None and not isinstance(value, str):
            self.fail(key, f"is {show(value)}; it must be a string.")
        if value is not None and allowed and value not in allowed:
            self.fail(key, f"is {show(value)}; understood are {', '.join(sorted(allowed))}.")
        return value

    def maybe_list(self, key: str, kind: type, most: int) -> list[Any] | None:
        """A list of 1 to `most` values of exactly this type, or `None` where the key is absent."""
        value = self.find(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(entry) is kind for entry in value):
            self.fail(key, f"is {show(value)}; it must be a list of {PLURAL[kind]}.")
        if not 1 <= len(value) <= most:
            self.fail(key, f"has {len(value)} entries; it must have 1 to {most}.")
        return value

    def section(self, key: str, inert: Collection[str] = ()) -> Keys | None:
        """The keys of a nested object, or `None` where it is absent."""
        value = self.find(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fail(key, f"is {show(value)}; it must be an object.")
        return Keys(self.where, [Source(f"{self.name(key)}.", value, inert)])

    def locked(self, rules: Mapping[str, tuple[tuple[object, ...], str]]) -> None:
        """Keys that are understood at some values only: key -> (those values, what any other would mean)."""
        for key, (allowed, meaning) in rules.items():
            value = self.find(key)
            if value is not None and not any(same(value, one) for one in allowed):
                only = " or ".join(show(one) for one in (*allowed, None))
                self.fail(key, f"is {show(value)}: {meaning}, which is not understood; only {only} is.")

    def rest(self) -> list[dict[str, Any]]:
        """What was not read, one mapping a source. Anything not inert is an error that names it."""
        for source in self.sources:
            for key in source.values:
                if key not in source.read and key not in source.inert:
                    names = self.known | set(source.inert)
                    raise CheckpointError(
                        f"{self.where}: {source.prefix}{label(key)} is not understood, and ignoring it could "
                        f"change what the draft computes.{nearest(key, names)} "
                        "Remove the key if it has no meaning."
                    )
        return [
            {key: value for key, value in source.values.items() if key not in source.read}
            for source in self.sources
        ]

    def _required(self, key: str, value: T | None, what: str) -> T:
        if value is None:
            self.fail(key, f"is missing; it must be {what}.")
        return value
