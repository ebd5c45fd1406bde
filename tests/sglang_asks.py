"""What the tests ask of SGLang servers, speculative or not."""

import json
import math

from sglang_server import model

from dflash_core.bench.prompts import SETS, load_prompts

GREEDY_TOKENS = 48

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def chat(question):
    """One question in the model's own chat format, as text."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


NO_REPEATS = {"ngram_size": 2, "window_size": 60}
"""No pair of tokens twice: what is excluded depends on all that was produced."""

CODE = chat("Write a Python function that returns the n-th Fibonacci number.")
FACT = chat("What is the capital of France?")
LIST = chat("List ten animals, one a line.")

TO_THE_END = [2, *range(1000, 2999)]
"""So many that an answer of `GREEDY_TOKENS` would go beyond what SGLang allows in a context of 2,048."""

FEATURES = {
    "frequency penalty": (LIST, {"frequency_penalty": 0.8}),
    "presence penalty": (LIST, {"presence_penalty": 1.2}),
    "repetition penalty": (LIST, {"repetition_penalty": 1.2}),
    "all penalties": (CODE, {"frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.1}),
    "min new tokens": (FACT, {"min_new_tokens": 24, "max_new_tokens": 40}),
    "ignore eos": (FACT, {"ignore_eos": True}),
    "logit bias": (CODE, {"logit_bias": {"198": -8.0, "3725": -100.0}}),
    "stop string": (CODE, {"stop": ["return"], "max_new_tokens": 60}),
    "stop token": (CODE, {"stop_token_ids": [472]}),
    "regex": (chat("Give me a telephone number."), {"regex": "[0-9]{3}-[0-9]{4}"}),
    "json": (
        chat("Describe a person as JSON."),
        {"json_schema": json.dumps(SCHEMA), "max_new_tokens": 48},
    ),
    "log-probabilities": (CODE, {"return_logprob": True, "top_logprobs_num": 3, "logprob_start_len": 0}),
    "custom processor": (LIST, {"custom_logit_processor": "no repeats", "custom_params": NO_REPEATS}),
    "one token": (FACT, {"max_new_tokens": 1}),
    "two tokens": (FACT, {"max_new_tokens": 2}),
}
"""Requests whose greedy answer has to be the same with and without speculation."""


def read(answer):
    """What is compared of an answer: tokens, text, why it ended, and log-probabilities."""
    info = answer["meta_info"]
    found = {
        "output_ids": answer["output_ids"],
        "text": answer["text"],
        "finish_reason": info["finish_reason"]["type"],
    }
    if info.get("output_token_logprobs"):
        found["logprobs"] = [entry[0] for entry in info["output_token_logprobs"]]
        found["top"] = [[entry[1] for entry in step] for step in info["output_top_logprobs"]]
        found["prompt"] = [entry[0] for entry in info["input_token_logprobs"]]
    return found


def same(one, other):
    """Whether two readings agree; log-probabilities to the rounding of another order of sums."""
    exact = [name for name in one if name not in ("logprobs", "prompt")]
    return all(one[name] == other[name] for name in exact) and all(
        math.isclose(a, b, abs_tol=2e-3) if a is not None and b is not None else a == b
        for name in ("logprobs", "prompt")
        for a, b in zip(one.get(name, []), other.get(name, []), strict=True)
    )


def benchmark_prompts(count):
    """Token ids of questions of the benchmark sets, the sets taking turns."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model())
    sets = [load_prompts(name, -(-count // len(SETS))) for name in SETS]
    messages = [one for row in zip(*sets, strict=True) for one in row][:count]
    return [
        tokenizer(tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True))["input_ids"]
        for one in messages
    ]
