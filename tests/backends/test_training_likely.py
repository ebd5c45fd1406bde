"""What real architectures think likely, against a plain forward without a cache."""

import pytest
import torch
from tiny_targets import plain_forward, prompts, tiny_target

from dflash_core.training.data.store import Answer, AnswerStore
from dflash_core.training.features import compute_features, read_shards
from dflash_core.training.likely import TOP, compute_likely


@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "qwen3-next", "qwen3.5"])
def test_what_is_kept_are_the_best_tokens_of_a_plain_forward(tmp_path, monkeypatch, name):
    monkeypatch.setattr("dflash_core.training.likely.CHUNK", 4)  # several runs a sequence
    target = tiny_target(name)
    texts = prompts(17, 6, 9)
    data, folder = tmp_path / "data", tmp_path / "features"
    AnswerStore(data, {}).add([Answer(text[:5], text[5:], {"id": str(len(text))}) for text in texts])
    compute_features(target, (0, 2), data, folder)
    compute_likely(target, data, folder)
    (shard,) = read_shards(data, folder, 2 * target.info.hidden_size, with_likely=True)
    for index, text in enumerate(texts):
        start = int(shard.offsets[index])
        there = slice(start + 4, start + len(text) - 1)
        probs = plain_forward(target, text)[0][4:-1].softmax(-1)
        found = shard.likely[there]
        torch.testing.assert_close(found.probs.float(), probs.topk(TOP).values, rtol=2e-3, atol=1e-4)
        torch.testing.assert_close(
            found.probs.float(), probs.gather(1, found.ids.long()), rtol=2e-3, atol=1e-4
        )
