"""Training data: prompts in, the target's own answers out, kept as token ids in shards."""

from dflash_core.training.data.answers import answer_prompts
from dflash_core.training.data.gather import read_prompts
from dflash_core.training.data.prompts import Prompt
from dflash_core.training.data.store import AnswerStore, Sequences

__all__ = ["AnswerStore", "Prompt", "Sequences", "answer_prompts", "read_prompts"]
