"""What SGLang and vLLM tell about drafts beyond OpenAI's protocol, in our words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from dflash_core.bench.answer import Drafting, drafting_from_histogram

Chunk = Mapping[str, Any]

SGLANG_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
SGLANG_VERIFIED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
SGLANG_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""Names of one number each, newest first: SGLang has renamed them more than once."""

COUNTER = re.compile(r"^vllm:spec_decode_num_(\w+?)_total(?:\{(.*)\})? ([0-9.eE+]+)$", re.MULTILINE)
POSITION = re.compile(r'position="(\d+)"')


def drafting_of_chunks(chunks: Iterable[Chunk]) -> Drafting | None:
    """From whichever chunk carries statistics, the last one if several do; `None` when none does."""
    found: Drafting | None = None
    for chunk in chunks:
        found = _sglang(chunk) or _vllm(chunk) or found
    return found


def read_counters(text: str) -> dict[str, float]:
    """vLLM's counters of drafts in a page of Prometheus metrics; per position as `per_pos/0`, ..."""
    counters: dict[str, float] = {}
    for name, labels, value in COUNTER.findall(text):
        position = POSITION.search(labels or "")
        key = f"per_pos/{position.group(1)}" if position else name
        counters[key] = counters.get(key, 0.0) + float(value)
    return counters


def drafting_between(before: Mapping[str, float], after: Mapping[str, float]) -> Drafting | None:
    """What happened between two readings of the counters; `None` when there was no draft."""
    gained = {name: round(value - before.get(name, 0.0)) for name, value in after.items()}
    cycles = gained.get("drafts", 0)
    if cycles <= 0:
        return None
    positions = sorted((n for n in gained if n.startswith("per_pos/")), key=lambda n: int(n.split("/")[1]))
    reached = [cycles, *(gained[name] for name in positions), 0]
    counts = [here - further for here, further in pairwise(reached)]
    return drafting_from_histogram(counts, gained.get("draft_tokens"), gained.get("accepted_tokens"))


def _sglang(chunk: Chunk) -> Drafting | None:
    for meta in _sglang_details(chunk):
        if isinstance(meta, Mapping):
            cycles = _number(meta, ("spec_verify_ct",))
            histogram = _counts(meta, SGLANG_HISTOGRAM)
            accepted, verified = _number(meta, SGLANG_ACCEPTED), _number(meta, SGLANG_VERIFIED)
            if histogram:
                return drafting_from_histogram(histogram, verified, accepted)
            if cycles:
                return _totals(cycles, verified, accepted, meta.get("spec_accept_length"))
    return None


def _sglang_details(chunk: Chunk) -> list[Any]:
    """Where SGLang may put them: into an extension of the answer when it streams, else into `meta_info`."""
    extension = chunk.get("sglext")
    details = extension.get("spec_tokens_details") if isinstance(extension, Mapping) else None
    spread = details if isinstance(details, list) else [details]
    return [*spread, *(holder.get("meta_info") for holder in (chunk, *_choices(chunk)))]


def _vllm(chunk: Chunk) -> Drafting | None:
    metrics = chunk.get("metrics")
    found = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    accepted = _number(found, ("num_accepted_draft_tokens",))
    verified = _number(found, ("num_draft_tokens",))
    histogram = _counts(found, ("acceptance_histogram",))
    if histogram:
        return drafting_from_histogram(histogram, verified, accepted)
    cycles = _number(found, ("num_spec_steps",))
    return _totals(cycles, verified, accepted, found.get("mean_acceptance_length")) if cycles else None


def _totals(cycles: int, verified: int | None, accepted: int | None, length: Any) -> Drafting | None:
    """Without a histogram: one with the right mean, of the two lengths next to it."""
    if accepted is None:
        if not isinstance(length, int | float):
            return None
        accepted = round((length - 1) * cycles)
    low, longer = divmod(accepted, cycles)
    counts = [0] * (low + 3)
    counts[low + 1] = cycles - longer
    counts[low + 2] = longer
    return Drafting(tuple(counts), verified, accepted)


def _choices(chunk: Chunk) -> list[Chunk]:
    choices = chunk.get("choices")
    return [one for one in choices if isinstance(one, Mapping)] if isinstance(choices, list) else []


def _number(data: Chunk, names: Iterable[str]) -> int | None:
    values = (data.get(name) for name in names)
    return next((int(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)), None)


def _counts(data: Chunk, names: Iterable[str]) -> list[int]:
    """A histogram: a list, or a mapping from number to count that leaves zeros out."""
    for name in names:
        value = data.get(name)
        if isinstance(value, Mapping):
            pairs = {int(key): int(count) for key, count in value.items()}
            return [pairs.get(index, 0) for index in range(max(pairs, default=-1) + 1)]
        if isinstance(value, list) and all(isinstance(count, int) for count in value):
            return list(value)
    return []
