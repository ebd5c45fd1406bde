"""Arguments are checked, and what follows from them is filled in, before any model is loaded."""

import inspect
from types import SimpleNamespace

import pytest
from sglang_server import DRAFT, model

pytest.importorskip("sglang", reason="SGLang is in an environment of its own; see `make test-sglang`")


def arguments(**given):
    """SGLang's arguments as they are when it asks an algorithm to check them."""
    from sglang.srt.server_args import ServerArgs

    defaults = {name: one.default for name, one in inspect.signature(ServerArgs).parameters.items()}
    defaults |= {"model_path": str(model()), "speculative_draft_model_path": str(DRAFT)}
    defaults |= {"device": "cpu", "attention_backend": "torch_native"}  # as the platform leaves them
    return SimpleNamespace(**{**defaults, **given})


@pytest.fixture
def complete(monkeypatch):
    """`complete` in a clean environment."""
    import os

    from dflash_backends.sglang.algorithm import complete

    for name in [*os.environ]:
        if name.startswith("DFLASH_"):
            monkeypatch.delenv(name)

    def checked(environment=(), **given):
        for name, value in dict(environment).items():
            monkeypatch.setenv(name, value)
        found = arguments(**given)
        complete(found)
        return found

    return checked


def test_everything_has_a_default(complete):
    found = complete()
    assert (found.speculative_dflash_block_size, found.speculative_num_draft_tokens) == (8, 8)
    assert (found.speculative_num_steps, found.speculative_eagle_topk) == (1, 1)
    assert found.disable_overlap_schedule


def test_sglangs_flags_mean_what_they_mean_for_its_own_algorithm(complete):
    assert complete(speculative_num_draft_tokens=4).speculative_dflash_block_size == 4
    assert complete(speculative_dflash_block_size=5).speculative_num_draft_tokens == 5
    assert complete(speculative_draft_window_size=64).speculative_draft_window_size == 64


def test_as_many_slots_are_reserved_as_nodes_are_verified(complete):
    assert complete({"DFLASH_TREE_BUDGET": "16"}).speculative_num_draft_tokens == 17
    assert (
        complete({"DFLASH_VERIFY_LENGTH": "3", "DFLASH_TREE_BUDGET": "none"}).speculative_num_draft_tokens
        == 3
    )


REFUSED = {
    "tree and count": (
        {"speculative_num_draft_tokens": 8},
        {"DFLASH_TREE_BUDGET": "16"},
        "--speculative-num-draft-tokens is 8, but tree_budget is 16",
    ),
    "two sizes": (
        {"speculative_num_draft_tokens": 8, "speculative_dflash_block_size": 4},
        {},
        "they mean the same",
    ),
    "no draft": ({"speculative_draft_model_path": None}, {}, "give --speculative-draft-model-path"),
    "a length beyond the block": (
        {"speculative_dflash_block_size": 4},
        {"DFLASH_VERIFY_LENGTH": "8"},
        "verify_length is 8",
    ),
    "a mistyped setting": ({}, {"DFLASH_TREE_BUGET": "8"}, "Did you mean DFLASH_TREE_BUDGET"),
    "pipeline": ({"pp_size": 2}, {}, "--pp-size is 2"),
    "hidden states": ({"enable_return_hidden_states": True}, {}, "hidden states"),
    "no folder": ({"speculative_draft_model_path": "/nowhere/at/all"}, {}, "/nowhere/at/all"),
    "no drafting": ({}, {"DFLASH_BLOCK_DIFFUSION": "false"}, "block_diffusion is false"),
    "replay": ({}, {"DFLASH_ROLLBACK": "replay"}, "cropped or gathered"),
    "auto on several ranks": ({"tp_size": 2}, {"DFLASH_SCHEDULE": "auto"}, "tp-size"),
    "auto on a GPU": ({"device": "cuda"}, {"DFLASH_SCHEDULE": "auto"}, "schedule"),
    "a greedy server": ({}, {"DFLASH_VERIFIER": "greedy"}, "temperature above 0, and a server gets such"),
    "a verifier nobody gives": ({}, {"DFLASH_VERIFIER": "sampeling"}, "no verifier 'sampeling'"),
    "a schedule nobody gives": ({}, {"DFLASH_SCHEDULE": "fixd"}, "no schedule 'fixd'"),
    "a drafter nobody gives": ({}, {"DFLASH_DRAFTER": "blok"}, "no drafter 'blok'"),
    "no vocabulary": ({}, {"DFLASH_DRAFT_VOCAB": "/nowhere.json"}, "no such file"),
    "a length beyond the draft's block": ({}, {"DFLASH_VERIFY_LENGTH": "20"}, "a block has 8 slots"),
    "crop with a tree": ({}, {"DFLASH_ROLLBACK": "crop", "DFLASH_TREE_BUDGET": "8"}, "has to be gathered"),
    "steps": ({"speculative_num_steps": 5}, {}, "--speculative-num-steps is 5"),
    "a top-k": ({"speculative_eagle_topk": 4}, {}, "--dflash-tree-budget"),
    "a threshold": ({"speculative_accept_threshold_acc": 0.9}, {}, "what the target would not have said"),
    "a token map": ({"speculative_token_map": "x"}, {}, "--dflash-draft-vocab"),
    "sinks": ({"speculative_draft_sink_size": 4}, {}, "sinks"),
    "a cache that fills slots": ({"enable_lmcache": True}, {}, "LMCache"),
    "a tree without a mask": (
        {"device": "cuda", "attention_backend": "fa3"},
        {"DFLASH_TREE_BUDGET": "8"},
        "--attention-backend is fa3, which verifies chains only",
    ),
    "a tree half without a mask": (
        {"device": "cuda", "attention_backend": "triton", "decode_attention_backend": "trtllm_mha"},
        {"DFLASH_TREE_BUDGET": "8"},
        "--decode-attention-backend is trtllm_mha",
    ),
    "a tree on SGLang's own torch": (
        {"device": "cuda"},
        {"DFLASH_TREE_BUDGET": "8"},
        "torch_native, which verifies chains only",
    ),
}


@pytest.mark.parametrize("backend", ["triton", "flashinfer"])
def test_trees_go_with_backends_that_read_masks(complete, backend):
    found = complete({"DFLASH_TREE_BUDGET": "8"}, device="cuda", attention_backend=backend)
    assert found.speculative_num_draft_tokens == 9


def test_chains_go_with_any_backend(complete):
    assert complete(device="cuda", attention_backend="fa3").speculative_num_draft_tokens == 8


def test_completing_what_is_complete_changes_nothing(complete):
    """SGLang may resolve its arguments more than once."""
    first = vars(complete())
    assert vars(complete(**first)) == first


def test_what_means_nothing_in_a_server_is_said_to_be_left_out(complete, caplog):
    complete({"DFLASH_TEMPERATURE": "0.5", "DFLASH_DTYPE": "bfloat16"})
    assert "dtype (DFLASH_DTYPE), temperature (DFLASH_TEMPERATURE)" in caplog.text


def test_ranks_do_not_measure_layouts_of_their_own(monkeypatch):
    """They would round differently, and draft different tokens."""
    from dflash_backends.sglang.options import worker_settings

    monkeypatch.delenv("DFLASH_FAST", raising=False)
    assert worker_settings(arguments()).fast == "auto"
    assert worker_settings(arguments(), ranks=2).fast == "off"


def test_sglang_is_not_imported_to_be_registered_with(tmp_path):
    """What `dflash-core plugins` and SGLang's own entry points load first."""
    import subprocess
    import sys

    program = (
        "import sys, dflash_core, dflash_backends.sglang.plugin, dflash_backends.sglang.entry\n"
        "from dflash_core.plugins import registry\n"
        "assert 'sglang' in registry('hosts')\n"
        "sys.exit('sglang' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False).returncode == 0


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_is_refused_with_the_reason(complete, case):
    from dflash_core.errors import DFlashError

    given, environment, message = REFUSED[case]
    with pytest.raises(DFlashError, match=message):
        complete(environment, **given)


HYBRID = {
    **{"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "vocab_size": 64},
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "full_attention_interval": 4, "num_experts": 0},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8},
    **{"linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "max_position_embeddings": 256},
}


def test_a_target_with_recurrent_layers_is_refused_before_it_is_loaded(complete, tmp_path):
    """There are no weights in the folder, so nothing could have been loaded."""
    import json

    from dflash_core.errors import UnsupportedError

    (tmp_path / "config.json").write_text(json.dumps(HYBRID))
    with pytest.raises(UnsupportedError, match="recurrent layers"):
        complete(model_path=str(tmp_path))


def test_the_flags_are_on_sglangs_command_line_and_reach_its_processes(monkeypatch):
    import argparse
    import os

    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    given = ["--model-path", "x", "--dflash-tree-budget", "12", "--dflash-config", "some.toml"]
    parsed = parser.parse_args(given)
    monkeypatch.setenv("DFLASH_TREE_BUDGET", "1")  # flags come before variables
    monkeypatch.setenv("DFLASH_CONFIG", "other.toml")
    ServerArgs.from_cli_args(parsed)
    assert (os.environ["DFLASH_TREE_BUDGET"], os.environ["DFLASH_CONFIG"]) == ("12", "some.toml")
    assert SpeculativeAlgorithm.from_string("dflash_core").name == "DFLASH_CORE"


def test_an_untested_version_starts_only_on_demand_and_says_what_changed(monkeypatch):
    from dflash_backends.sglang import registration, versions
    from dflash_core.errors import UnsupportedError

    assert versions.changes() == []
    registration.check_version(None)
    monkeypatch.setattr(versions, "installed", lambda: "0.9.9")
    monkeypatch.setattr(registration, "installed", lambda: "0.9.9")
    surface = {**versions.SURFACE, "sglang.srt.speculative.spec_utils:build_grammar_vocab_mask": ("reqs",)}
    fields = {"sglang.srt.managers.utils:GenerationBatchResult": ("accept_lens", "accepted")}
    monkeypatch.setattr(versions, "FIELDS", fields)
    monkeypatch.setattr(versions, "SURFACE", surface)
    told = r"this is 0\.9\.9.*build_grammar_vocab_mask takes.*GenerationBatchResult takes no accepted\."
    with pytest.raises(UnsupportedError, match=told):
        registration.check_version(None)
    monkeypatch.setenv(versions.OVERRIDE, "1")
    registration.check_version(None)


def test_the_platform_is_never_chosen_but_by_name(monkeypatch):
    from dflash_backends.sglang.entry import platform

    for value in ("", "other", "DFLASH_CPU"):
        monkeypatch.setenv("SGLANG_PLATFORM", value)
        assert platform() is None
    monkeypatch.delenv("SGLANG_PLATFORM")
    assert platform() is None
    monkeypatch.setenv("SGLANG_PLATFORM", "dflash_cpu")
    assert platform() == "dflash_backends.sglang.cpu.platform:DFlashCpuPlatform"


def test_the_drafts_context_is_counted_as_memory_of_a_slot(monkeypatch):
    import torch

    from dflash_backends.sglang import memory

    monkeypatch.setattr(memory, "ours", lambda: True)
    monkeypatch.setattr(memory, "get_spec", lambda: SimpleNamespace(speculative_draft_model_path=str(DRAFT)))
    sizes = SimpleNamespace(_cell_size=1000)
    configuration = SimpleNamespace(is_draft_worker=False, model_config=SimpleNamespace(dtype=torch.float32))
    memory.count_context(None, sizes, configuration)
    assert sizes._cell_size == 1000 + 2 * 3 * 3 * 64 * 4  # keys and values, layers, heads, size, bytes
    monkeypatch.setattr(memory, "ours", lambda: False)
    memory.count_context(None, sizes, configuration)
    assert sizes._cell_size == 5608
    assert memory.widen_rows(12) == 12


def test_what_is_hooked_of_sglang_is_there():
    """A hook on a name that does not exist is only logged by SGLang."""
    import pkgutil

    from dflash_backends.sglang import flags, memory
    from dflash_backends.sglang.cpu import hooks

    ours = (memory.SIZING, memory.CONFIGURATOR, f"{flags.ARGUMENTS}.add_cli_args")
    for place in (*ours, hooks.SLOTS, hooks.ARGUMENTS):
        assert callable(pkgutil.resolve_name(place))
