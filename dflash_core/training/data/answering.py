"""What both ways of getting answers share: options, order, and a collector that loses nothing."""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from dflash_core.training.data.prompts import Prompt
from dflash_core.training.data.store import Answer, AnswerStore

SHARD = 256
"""Answers a shard; what a kill can lose at most, besides those that are being made."""

SHORTEST = 4
"""Answers of fewer tokens teach nothing and are kept out."""

TOO_LONG = "the prompt is too long"
TOO_SHORT = "the answer is too short"
REFUSED = "the chat template refuses it"
DECLINED = "the endpoint refuses it"
LASTING = frozenset({TOO_LONG, TOO_SHORT})
"""Reasons that will hold the next time as well, so that such a prompt is not tried again."""


@dataclass(frozen=True)
class AnswerOptions:
    """How answers are made.

    Attributes:
        max_prompt_tokens: longer prompts are left out.
        max_new_tokens: where an answer is cut.
        temperature: 0 is greedy.
        seed: of the order and, together with a prompt's id, of its sampling.
        max_batch: answers made at a time.
        shard: answers a shard.
        template: variables of the chat template, e.g. `enable_thinking`.
    """

    max_prompt_tokens: int = 512
    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    max_batch: int = 128
    shard: int = SHARD
    template: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """How far this run is.

    Attributes:
        answers, tokens: made in this run.
        prompts: all that were given.
        left: prompts that this run began with, neither answered nor left out before.
        left_out: prompts that got no answer in this run, by reason.
    """

    answers: int
    tokens: int
    prompts: int
    left: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def settled(self) -> int:
        """How many of `left` have been dealt with."""
        return self.answers + sum(self.left_out.values())


Report = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Reports to nobody."""


def never() -> bool:
    """Goes on to the end."""
    return False


def waiting_prompts(prompts: Sequence[Prompt], store: AnswerStore, seed: int) -> list[Prompt]:
    """Prompts that were not tried yet, in a shuffled order that is the same every time."""
    order = list(prompts)
    random.Random(seed).shuffle(order)
    done = store.done()
    return [prompt for prompt in order if prompt.id not in done]


def sampling_seed(prompt: Prompt, seed: int) -> int:
    """The seed of one prompt's answer: whoever else is asked, and however often the run was stopped."""
    digest = hashlib.sha256(f"{seed}:{prompt.id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Collector:
    """Gathers answers and writes them a shard at a time; what is left is written when its block is left.

    That holds for a block that is left by an error or an interrupt too, at whatever point it came.
    """

    def __init__(self, store: AnswerStore, options: AnswerOptions, prompts: int, left: int) -> None:
        self._store = store
        self._size = options.shard
        self._prompts, self._left = prompts, left
        self._answers: list[Answer] = []
        self._lasting: dict[str, str] = {}
        self._next = store.next_shard()
        self._left_out: Counter[str] = Counter()
        self.answers = self.tokens = 0

    @property
    def progress(self) -> Progress:
        """So far."""
        return Progress(self.answers, self.tokens, self._prompts, self._left, dict(self._left_out))

    def answer(self, prompt: Prompt, ids: Sequence[int], tokens: Sequence[int], finish: str | None) -> None:
        """Take in an answer; one that is too short is left out."""
        if len(tokens) < SHORTEST:
            self.leave_out(prompt, TOO_SHORT)
            return
        self.answers += 1
        self.tokens += len(tokens)
        record = {"id": prompt.id, "source": prompt.source, "finish": finish}
        self._answers.append(Answer(ids, tokens, record))
        if len(self._answers) >= self._size:
            self.flush()

    def leave_out(self, prompt: Prompt, reason: str) -> None:
        """Note that a prompt gets no answer."""
        self._left_out[reason] += 1
        if reason in LASTING:
            self._lasting[prompt.id] = reason

    def flush(self) -> None:
        """Write what has been gathered.

        Raises:
            DFlashError: it cannot be written.
        """
        if self._answers and not self._store.holds(self._next):
            self._store.add(self._answers)
        # An interrupt between the two finds the shard written, and this flush is then tried once more.
        self._answers, self._next = [], self._next + bool(self._answers)
        if self._lasting:
            self._store.leave_out(self._lasting)
            self._lasting = {}

    def __enter__(self) -> "Collector":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flush()
