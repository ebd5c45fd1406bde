"""Prompts that a benchmark asks, or that quote what it asks, are found so that they can be left out.

Texts are compared as sequences of words: case, white space, punctuation and Unicode's look-alikes do not
count.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash_core.bench.prompts import SETS, load_prompts
from dflash_core.errors import DFlashError

PHRASE = 8
"""Words in a row that are compared. A question of fewer words counts as one phrase."""

LONG_PHRASE = 13
"""Words in a row of which one in common is enough, the usual measure (Brown et al. 2020, appendix C)."""

SHARE = 0.5
"""Share of a question's phrases that makes a prompt a quotation of it."""

SHORTEST = 5
"""Questions of fewer words are compared whole only: their words stand in many innocent texts."""

COMMON = 2
"""A phrase in more questions of a set than this is how the set asks, not what."""

INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")

Phrase = tuple[str, ...]


@dataclass(frozen=True)
class BenchmarkSets:
    """Questions by set, and for the sets that cannot be read the reason."""

    questions: Mapping[str, Sequence[str]]
    missing: Mapping[str, str]


def benchmark_sets() -> BenchmarkSets:
    """The built-in benchmark sets, as far as the packages that carry them are installed."""
    questions: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    for name in SETS:
        try:
            questions[name] = ["\n".join(one["content"] for one in chat) for chat in load_prompts(name)]
        except DFlashError as error:
            missing[name] = str(error)
    return BenchmarkSets(questions, missing)


class Overlap:
    """Finds texts that repeat one of many questions."""

    def __init__(self, questions: Mapping[str, Sequence[str]]) -> None:
        """
        Args:
            questions: by name of the set that they are from.
        """
        self._names: list[str] = []
        self._whole: dict[Phrase, str] = {}
        self._phrases: defaultdict[Phrase, list[int]] = defaultdict(list)
        self._counts: list[int] = []
        self._long: set[Phrase] = set()
        self._sizes: set[int] = set()
        for name, texts in questions.items():
            self._add(name, [words(text) for text in texts])

    def __call__(self, text: str) -> str | None:
        """The set that a text repeats a question of, or `None`."""
        said = words(text)
        if (whole := self._whole.get(said)) is not None:
            return whole
        hits: Counter[int] = Counter()
        for size in self._sizes:
            for phrase in phrases(said, size):
                hits.update(self._phrases.get(phrase, ()))
        if not hits:
            return None
        question, most = max(hits.items(), key=lambda item: item[1] / self._counts[item[0]])
        if most >= SHARE * self._counts[question] or not self._long.isdisjoint(phrases(said, LONG_PHRASE)):
            return self._names[question]
        return None

    def _add(self, name: str, texts: Sequence[Phrase]) -> None:
        sizes = [min(PHRASE, len(text)) for text in texts]
        seen = Counter(
            phrase for text, size in zip(texts, sizes, strict=True) for phrase in phrases(text, size)
        )
        for text, size in zip(texts, sizes, strict=True):
            self._whole.setdefault(text, name)
            own = [phrase for phrase in phrases(text, size) if seen[phrase] <= COMMON]
            if size < SHORTEST or not own:
                continue
            for phrase in own:
                self._phrases[phrase].append(len(self._names))
            self._long |= {one for one in phrases(text, LONG_PHRASE) if seen[one[:PHRASE]] <= COMMON}
            self._sizes.add(size)
            self._names.append(name)
            self._counts.append(len(own))


def words(text: str) -> Phrase:
    """The words of a text, as they are compared."""
    plain = unicodedata.normalize("NFKC", INVISIBLE.sub("", text)).casefold()
    return tuple(re.findall(r"\w+", plain))


def phrases(text: Phrase, size: int) -> set[Phrase]:
    """All runs of `size` words."""
    return {text[start : start + size] for start in range(len(text) - size + 1)}
