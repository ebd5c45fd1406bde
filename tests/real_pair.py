"""The real pair and real prompts, loaded once a session: what the slow tests run on."""

from functools import cache

from dflash_backends.transformers.demo_model import smollm2_folder
from dflash_core.bench.prompts import SETS, load_prompts
from dflash_core.demo import draft_folder
from dflash_core.loading import load_draft, load_target


@cache
def real_target():
    """SmolLM2-135M-Instruct, float32, as `load_target` gives it to a user."""
    return load_target(smollm2_folder())


@cache
def real_draft(**options):
    """The project's draft for it."""
    return load_draft(draft_folder(), real_target(), **options)


@cache
def benchmark_prompts(count):
    """`count` prompts of each benchmark set as token ids, the sets taking turns."""
    sets = [load_prompts(name, count) for name in SETS]
    return [real_target().encode_chat(messages) for row in zip(*sets, strict=True) for messages in row]
