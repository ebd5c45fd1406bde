"""Whatever is done to a checkpoint, it loads or ends in a DFlashError that names the file and what in it."""

import copy
import json
import re
import struct
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch
from checkpoint_samples import CONFIGS, DIALECTS, tensors_on_disk
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from dflash_core.checkpoint.inspect import inspect_checkpoint
from dflash_core.checkpoint.keys import label
from dflash_core.checkpoint.load import load_checkpoint, read_spec
from dflash_core.checkpoint.save import differences, save_checkpoint
from dflash_core.checkpoint.shapes import tensor_shapes
from dflash_core.checkpoint.validate import validate_checkpoint
from dflash_core.errors import DFlashError

WEIGHTS = "model.safetensors"
NAMES = st.sampled_from(sorted(CONFIGS))
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2, 7, 64, 10**6, 2**31, 2**63, 2**200, -(2**70), 1e300, -0.5, 5e-324, 1.5]),
    st.sampled_from(
        ["", "qwen3", "full_attention", "yarn", "bfloat16", "dspark", "\ud800", "\0", "x" * 3000]
    ),
    st.sampled_from([[], [0], [1, 4, 7], [-1], [[1]], ["a"], [None], {}, {"a": 1}, {"rope_type": "yarn"}]),
    st.recursive(
        st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3), max_leaves=5
    ),
)
KEYS = st.sampled_from(
    [
        *("", "block_size", "causal", "rope_scaling", "sliding_windo", "x" * 2000, "\ud800", "a\nb"),
        *("projector_type", "markov_rank", "sample_from_anchor", "enable_confidence_head", "confidence_head"),
    ]
)


@cache
def serialised(name: str) -> bytes:
    return save(tensors_on_disk(CONFIGS[name]))


def places(value: object, path: tuple = ()) -> Iterator[tuple]:
    """Paths of everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield (*path, key)
        yield from places(child, (*path, key))


def words(config: object) -> set[str]:
    """Every key of a JSON value, as messages show it."""
    return {label(part) for path in places(config) for part in path if isinstance(part, str)}


@st.composite
def configs(draw: st.DrawFn) -> tuple[str, object]:
    """A config that one to three times had a value removed, replaced, or put where it does not belong."""
    name = draw(NAMES)
    config = copy.deepcopy(CONFIGS[name])
    for _ in range(draw(st.integers(1, 3))):
        *folders, last = draw(st.sampled_from(sorted(places(config), key=str)))
        holder = config
        for key in folders:
            holder = holder[key]
        action = draw(st.sampled_from(["remove", "replace", "add"]))
        if action == "remove":
            del holder[last]
        elif action == "replace" or isinstance(holder, list):
            holder[last] = copy.deepcopy(draw(ODD))
        else:
            holder[draw(KEYS)] = copy.deepcopy(draw(ODD))
    return name, config


def outcome(config: bytes, weights: bytes, known: set[str]) -> DFlashError | None:
    """Load a checkpoint with these bytes; checks every way of reading it, and the message."""
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "draft"
        folder.mkdir()
        (folder / "config.json").write_bytes(config)
        (folder / WEIGHTS).write_bytes(weights)
        try:
            checkpoint = load_checkpoint(folder, DIALECTS)
        except DFlashError as error:
            (finding,) = validate_checkpoint(folder, dialects=DIALECTS)
            assert finding.level == "error"
            check_message(str(error), str(folder), known | asked_for(folder))
            return error
        inspect_checkpoint(folder, DIALECTS).to_dict()
        read_spec(folder, DIALECTS)
        again = save_checkpoint(
            checkpoint, Path(base) / "again", dialect=checkpoint.spec.dialect, dialects=DIALECTS
        )
        assert not differences(load_checkpoint(again, DIALECTS).spec, checkpoint.spec)
    return None


def asked_for(folder: Path) -> set[str]:
    """Names of the tensors that a changed config asks for, where it can be read."""
    try:
        return set(tensor_shapes(read_spec(folder, DIALECTS)))
    except DFlashError:
        return set()


def check_message(message: str, folder: str, known: set[str]) -> None:
    assert folder in message
    assert len(message) < 900
    assert message.isprintable()
    about = message.replace(folder, "")
    assert any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", about) for word in known), message


DRAFT_KEYS = {
    *(word for config in CONFIGS.values() for word in words(config)),
    *("is_causal", "causal", "use_swa", "swa_window_size", "input_embedding_scale", "attention_sink_bias"),
    *("type", "rope_type", "factor", "torch_dtype", "projector_type", "sample_from_anchor"),
}


@settings(max_examples=250, deadline=None)
@given(configs())
def test_a_changed_config_loads_or_is_refused_by_key(change):
    name, config = change
    text = json.dumps(config).encode()
    outcome(text, serialised(name), DRAFT_KEYS | words(config) | tensors_on_disk(CONFIGS[name]).keys())


@settings(max_examples=100, deadline=None)
@given(NAMES, st.data())
def test_changed_tensors_are_refused_by_name(name, data):
    tensors = dict(tensors_on_disk(CONFIGS[name]))
    known = {"d2t", "t2d", *tensors}
    for _ in range(data.draw(st.integers(1, 2))):
        key = data.draw(st.sampled_from(sorted(tensors)))
        tensor = tensors[key]
        action = data.draw(st.sampled_from(["remove", "add", "rename", "shape", "flat", "dtype", "value"]))
        if action in ("remove", "rename"):
            del tensors[key]
        if action in ("add", "rename"):
            tensors[data.draw(st.text(max_size=30).filter(lambda text: text != "__metadata__"))] = torch.ones(
                2, 3
            )
        elif action == "shape":
            tensors[key] = torch.zeros(*tensor.shape, 2).to(tensor.dtype)
        elif action == "flat":
            tensors[key] = tensor.reshape(-1).clone()
        elif action == "dtype":
            tensors[key] = tensor.to(data.draw(st.sampled_from([torch.float64, torch.int8, torch.float16])))
        elif action == "value" and tensor.is_floating_point():
            tensors[key] = tensor.clone()
            tensors[key].view(-1)[-1] = data.draw(st.sampled_from([float("nan"), float("inf")]))
    outcome(json.dumps(CONFIGS[name]).encode(), save(tensors), known | {label(key) for key in tensors})


@settings(max_examples=200, deadline=None)
@given(NAMES, st.data())
def test_a_changed_weight_file_is_refused_by_name(name, data):
    content = bytearray(serialised(name))
    header = struct.unpack("<Q", content[:8])[0]
    action = data.draw(st.sampled_from(["truncate", "append", "length", "header"]))
    if action == "truncate":
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    elif action == "append":
        content += bytes(data.draw(st.integers(1, 99)))
    elif action == "length":
        length = data.draw(st.integers(0, 2**64 - 1) | st.integers(header - 9, header + 9))
        content[:8] = struct.pack("<Q", length)
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(8, header + 7))] = data.draw(st.integers(0, 255))
    known = {WEIGHTS, "tensor", *tensors_on_disk(CONFIGS[name])}
    outcome(json.dumps(CONFIGS[name]).encode(), bytes(content), known)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_noise_is_refused_by_file(config, weights):
    assert outcome(config, weights, {"config.json"}) is not None
    plain = json.dumps(CONFIGS["zlab"]).encode()
    assert outcome(plain, weights, {WEIGHTS}) is not None
    if len(config) >= 8:
        assert outcome(plain, struct.pack("<Q", len(config) - 8) + config, {WEIGHTS}) is not None
