"""One request: what is asked for, and when it is finished."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dflash_core.errors import RequestError
from dflash_core.processors import LogitsProcessor
from dflash_core.sampling import SamplingParams, whole
from dflash_core.settings.model import MOST_NODES

Detokenize = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Request:
    """One prompt and how it is to be continued.

    Attributes:
        prompt: token ids, at least one.
        max_new_tokens: at least 1; the first comes out of the prefill.
        eos_token_ids: any of them ends the request and is part of its tokens.
        stop: strings (they need a tokenizer) or token sequences that end the request. Tokens up to the one
            that completes the stop are kept; a stop string itself is cut from the text.
        block_size: slots of a block, anchor included; `None` is the drafter's own.
        verify_length: "auto" (the schedule decides), "block", or a number that counts the anchor.
        tree_budget: tree nodes besides the anchor; `None` for a chain; "auto" leaves it to the schedule where
            `verify_length` does, too.
        processors: applied to the target's logits at every node, with that node's prefix.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    eos_token_ids: tuple[int, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str | tuple[int, ...], ...] = ()
    block_size: int | None = None
    verify_length: int | str = "auto"
    tree_budget: int | str | None = "auto"
    processors: tuple[LogitsProcessor, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise RequestError("The prompt has no tokens; a request needs at least one.")
        whole("max_new_tokens", self.max_new_tokens)
        if self.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens is {self.max_new_tokens}; it must be at least 1.")
        if self.block_size is not None and whole("block_size", self.block_size) < 1:
            raise RequestError(
                f"block_size is {self.block_size}; it must be at least 1 (1 is plain decoding)."
            )
        length = self.verify_length
        if isinstance(length, str):
            if length not in ("auto", "block"):
                raise RequestError(f'verify_length is {length!r}; it must be "auto", "block" or a number.')
        elif whole("verify_length", length) < 1:
            raise RequestError(f"verify_length is {length}; it must be at least 1 (it counts the anchor).")
        budget = self.tree_budget
        if isinstance(budget, str):
            if budget != "auto":
                raise RequestError(f'tree_budget is {budget!r}; it must be "auto", None or a number.')
        elif budget is not None and not 1 <= whole("tree_budget", budget) <= MOST_NODES:
            raise RequestError(
                f"tree_budget is {budget}; it must be at least 1 and at most {MOST_NODES} (None is a chain)."
            )
        if any(len(stop) == 0 for stop in self.stop):
            raise RequestError(
                "A stop sequence is empty; leave it out or give it at least one character or token."
            )


def end_of(
    request: Request, generated: Sequence[int], new: Sequence[int], detokenize: Detokenize | None
) -> tuple[int, str | None]:
    """Where the request ends within newly committed tokens.

    Args:
        generated: tokens so far, without `new`.
        new: committed just now.
        detokenize: needed when a stop is a string.

    Returns:
        How many of `new` count, and the reason the request is finished (`None`: it is not).
    """
    room = request.max_new_tokens - len(generated)
    so_far = list(generated)
    for count, token in enumerate(new[:room], start=1):
        so_far.append(token)
        if token in request.eos_token_ids or _stopped(request, so_far, detokenize):
            return count, "stop"
    return min(len(new), room), "length" if len(new) >= room else None


def cut_at_stop(text: str, stops: Sequence[str | tuple[int, ...]]) -> str:
    """The text before the first stop string in it."""
    ends = [text.find(stop) for stop in stops if isinstance(stop, str)]
    return text[: min((end for end in ends if end >= 0), default=len(text))]


def _stopped(request: Request, tokens: list[int], detokenize: Detokenize | None) -> bool:
    for stop in request.stop:
        if isinstance(stop, str):
            if detokenize is None:
                raise RequestError(f"The stop string {stop!r} needs a tokenizer, and this target has none.")
            # A token adds at least one byte, so this tail holds every way to complete the stop just now.
            if stop in detokenize(tokens[-len(stop.encode()) - 8 :]):
                return True
        elif tuple(tokens[-len(stop) :]) == stop:
            return True
    return False
