"""Which SGLang this adapter was tried with, and what it touches of another one."""

import importlib.metadata
import inspect
import os
import pkgutil

TESTED = ("0.5.23",)

OVERRIDE = "DFLASH_UNTESTED_ENGINE"
"""Set to 1, this variable starts the adapter on a version that it was not tried with."""

SURFACE = {
    "sglang.srt.speculative.spec_registry:register_algorithm": (
        *("name", "supports_overlap", "validate_server_args", "spec_class"),
    ),
    "sglang.srt.speculative.spec_registry:CustomSpecAlgo.handle_server_args": ("self", "server_args"),
    "sglang.srt.speculative.base_spec_worker:BaseSpecWorker.alloc_memory_pool": (
        *("self", "memory_pool_config", "req_to_token_pool", "token_to_kv_pool_allocator"),
    ),
    "sglang.srt.speculative.base_spec_worker:BaseSpecWorker.on_verify_complete_cpu": (
        *("self", "num_correct_drafts_per_req", "batch_size"),
    ),
    "sglang.srt.speculative.spec_utils:build_grammar_vocab_mask": (
        *("reqs", "tree", "sampling_info", "device", "barrier"),
    ),
    "sglang.srt.layers.logprob_processor:compute_spec_logprobs": (
        *("batch", "logits_output", "predict", "accept_index", "chain_stride"),
    ),
    "sglang.srt.managers.tp_worker:TpModelWorker.forward_batch_generation": (
        *("self", "batch", "forward_batch", "pp_proxy_tensors", "is_verify", "skip_attn_backend_init"),
        *("capture_hidden_mode", "return_kv_loc_plan"),
    ),
    "sglang.srt.speculative.dflash_info:DFlashVerifyInput.prepare_for_verify": (
        *("self", "batch", "target_worker", "defer_metadata_init"),
    ),
    "sglang.srt.managers.overlap_utils:FutureMap": (
        *("device", "spec_algo", "req_to_token_pool", "needs_cpu_seq_lens", "needs_confidence_relay"),
    ),
    "sglang.srt.layers.sampler:Sampler._sample_from_probs": (
        *("self", "probs", "sampling_info", "positions", "simple_sampling_case"),
    ),
    "sglang.srt.sampling.sampling_batch_info:ProcessorEntry": ("processor", "rows", "indices"),
    "sglang.srt.speculative.spec_utils:GrammarTree.from_host": (
        *("retrieve_next_token", "retrieve_next_sibling", "draft_token"),
    ),
    "sglang.srt.mem_cache.memory_pool:MHATokenToKVPool.move_kv_cache": ("self", "tgt_loc", "src_loc"),
    "sglang.srt.mem_cache.allocation_sizing:get_req_to_token_extra_context_len": (),
    "sglang.srt.model_executor.pool_configurator:DefaultPoolConfigurator.__init__": ("self", "kvc"),
    "sglang.srt.configs.hybrid_arch:mambaish_config": ("model_config",),
    "sglang.srt.server_args:ServerArgs.add_cli_args": ("parser",),
    "sglang.srt.server_args:ServerArgs.from_cli_args": ("args",),
    "sglang.srt.runtime_context:get_spec": (),
    "sglang.srt.runtime_context:get_parallel": (),
    "sglang.srt.runtime_context:get_observability": (),
    "sglang.srt.plugins.hook_registry:HookRegistry.register": ("target", "hook", "hook_type", "source"),
}
"""What is called or overridden, and the parameters it had in the tested version."""

FIELDS = {
    "sglang.srt.managers.utils:GenerationBatchResult": (
        *("logits_output", "next_token_ids", "accept_lens", "can_run_cuda_graph", "new_seq_lens"),
        *("next_draft_input", "speculative_num_draft_tokens", "speculative_output_stride"),
    ),
    "sglang.srt.speculative.dflash_info:DFlashVerifyInput": (
        *("draft_token", "positions", "draft_token_num", "topk", "custom_mask", "capture_hidden_mode"),
    ),
}
"""What is made with some of its parameters, and which; there may be others."""


def installed() -> str:
    """The version of SGLang in this environment."""
    return importlib.metadata.version("sglang")


def objection() -> str | None:
    """Why not to start on the installed version; `None` when it was tried, or somebody insists."""
    version = installed()
    if version in TESTED or os.environ.get(OVERRIDE) == "1":
        return None
    changed = changes()
    what = (
        f"Changed in what the adapter touches: {'; '.join(changed)}."
        if changed
        else "The functions and classes that the adapter is known to touch have the same parameters."
    )
    return (
        f"DFLASH_CORE was tried with SGLang {', '.join(TESTED)}, and this is {version}. {what} "
        f"Set {OVERRIDE}=1 to start it all the same."
    )


def changes() -> list[str]:
    """What differs from the tested version, one phrase a name."""
    found = []
    for place, expected in SURFACE.items():
        name = place.replace(":", ".")
        try:
            value = pkgutil.resolve_name(place)
        except (ImportError, AttributeError) as error:
            found.append(f"{name} is missing ({error})")
            continue
        given = tuple(inspect.signature(value).parameters)
        if given != expected:
            found.append(f"{name} takes ({', '.join(given)}), not ({', '.join(expected)})")
    return [*found, *_missing(), *_unanswered()]


def _missing() -> list[str]:
    """Parameters that the adapter passes and that are gone."""
    found = []
    for place, needed in FIELDS.items():
        name = place.replace(":", ".")
        try:
            given = inspect.signature(pkgutil.resolve_name(place)).parameters
        except (ImportError, AttributeError) as error:
            found.append(f"{name} is missing ({error})")
        else:
            found += [f"{name} takes no {one}" for one in needed if one not in given]
    return found


def _unanswered() -> list[str]:
    """Questions that SGLang asks its own algorithms and that ours would not answer."""
    try:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        from dflash_backends.sglang.algorithm import DFlashCoreAlgorithm
    except (ImportError, AttributeError) as error:
        return [f"the algorithm's own class cannot be made ({error})"]
    asked = {
        name
        for name, value in vars(SpeculativeAlgorithm).items()
        if callable(value) and not name.startswith("_")
    }
    missing = sorted(asked - set(dir(DFlashCoreAlgorithm)) - BY_NAME)
    return [f"SpeculativeAlgorithm.{name} is new" for name in missing]


BY_NAME = frozenset({"from_string", "register", "get_platform_worker_cls"})
"""Methods of SGLang's enumeration that are not asked of a registered algorithm."""
