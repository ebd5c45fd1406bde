"""`DFLASH_CORE` as SGLang sees a speculative algorithm."""

import logging
from pathlib import Path
from typing import Any

import torch
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from dflash_backends.sglang.options import MEANINGLESS, reserved_nodes, server_settings, with_default_schedule
from dflash_core.checkpoint.load import survey_checkpoint
from dflash_core.checkpoint.pair import check_pair
from dflash_core.checkpoint.targets import read_target
from dflash_core.errors import SettingsError, UnsupportedError
from dflash_core.plugins import provider
from dflash_core.settings import Resolved

logger = logging.getLogger(__name__)

NAME = "DFLASH_CORE"

REFUSED = {
    "pp_size": (1, "pipeline parallelism"),
    "enable_dp_attention": (False, "data-parallel attention"),
    "enable_return_hidden_states": (False, "returning hidden states, whose place the draft's taps take"),
    "speculative_draft_model_quantization": (None, "a quantised draft"),
    "enable_hierarchical_cache": (False, "a hierarchical cache, which would move slots without the draft's"),
    "disaggregation_mode": ("null", "prefill and decode on different servers"),
    "enable_mixed_chunk": (False, "prompts and running requests in one batch"),
    "enable_lora": (False, "adapters (LoRA), whose layers take the place of the embedding a draft borrows"),
    "enable_unified_memory": (False, "a unified memory pool, whose slots move"),
    "enable_lmcache": (False, "LMCache, which would fill slots without the draft's"),
    "enable_flexkv": (False, "FlexKV, which would fill slots without the draft's"),
    "radix_cache_backend": (None, "other radix caches, which may move slots without the draft's"),
    "enable_two_batch_overlap": (False, "micro-batches"),
    "speculative_num_steps": (1, "steps, since a block is drafted at once"),
    "speculative_eagle_topk": (1, "a top-k; ask for a tree with --dflash-tree-budget"),
    "speculative_accept_threshold_single": (1.0, "accepting what the target would not have said"),
    "speculative_accept_threshold_acc": (1.0, "accepting what the target would not have said"),
    "speculative_token_map": (None, "a token map; a draft chooses from fewer tokens by --dflash-draft-vocab"),
    "speculative_draft_sink_size": (None, "sinks beside the draft's window"),
    "speculative_adaptive": (False, "adaptive steps; see --dflash-schedule"),
    "speculative_draft_kv_cache_dtype": (None, "a format of its own for the draft's context"),
}
"""Arguments of SGLang that this algorithm does not go with: the value it needs, and what the other is."""

READS_MASKS = ("triton", "flashinfer")
"""Attention backends of SGLang that give every node of a tree the ancestors that its mask names. Others take
the nodes for a chain, as long as SGLang's own top-k is 1."""

ATTENTION = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
"""Arguments that name the backend; verification runs in either of the last two."""


class DFlashCoreAlgorithm(CustomSpecAlgo):
    """Answers SGLang's questions about the algorithm. Those not asked here have the base's answers: no."""

    def carries_draft_hidden_states(self) -> bool:
        return False

    def need_topk(self) -> bool:
        return False

    def has_draft_kv(self) -> bool:
        """The draft's own keys lie in the target's slots, so no extra slots are needed."""
        return False

    def create_future_map(
        self,
        device: torch.device,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> Any:
        """As SGLang does for its own algorithms."""
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)

    def handle_server_args(self, server_args: Any) -> None:
        """Check the arguments and complete them; called before any model is loaded."""
        complete(server_args)


def complete(server_args: Any) -> None:
    """Check SGLang's arguments for this algorithm, and fill in what follows from them.

    Raises:
        SettingsError: arguments contradict each other.
        UnsupportedError: something of SGLang that this algorithm does not go with.
        CheckpointError, PairError: the draft cannot be read, or does not fit.
    """
    refuse(server_args)
    resolved = server_settings(server_args)
    settings = with_default_schedule(resolved)
    if settings.draft is None:
        raise SettingsError(f"{NAME} needs a draft: give --speculative-draft-model-path.")
    if not settings.block_diffusion:
        raise SettingsError(
            f"block_diffusion is false ({resolved.origins['block_diffusion']}), but {NAME} is nothing else; "
            "leave --speculative-algorithm out to decode plainly."
        )
    refuse_settings(resolved)
    if settings.rollback not in ("auto", "crop", "gather"):
        raise UnsupportedError(
            f"rollback is {settings.rollback!r} ({resolved.origins['rollback']}), but SGLang's caches are "
            'cropped or gathered; use "auto".'
        )
    if settings.schedule == "auto":
        refuse_auto(server_args)
    if settings.fixed_tree is not None:
        refuse_maskless(server_args)
    cache = server_args.download_dir
    draft = local_folder(settings.draft, server_args.speculative_draft_model_revision, cache)
    spec = survey_checkpoint(draft).spec
    target = local_folder(server_args.model_path, server_args.revision, cache)
    refuse_recurrent(ModelConfig(target, trust_remote_code=server_args.trust_remote_code))
    check_pair(spec, read_target(target))
    block_size = settings.block_size or spec.block_size
    refuse_length(resolved, block_size)
    server_args.speculative_draft_model_path = draft
    server_args.speculative_dflash_block_size = block_size
    server_args.speculative_num_draft_tokens = reserved_nodes(settings, block_size)
    server_args.speculative_draft_window_size = settings.draft_window
    # SGLang counts slots with these two as well; our nodes are all in the number above
    server_args.speculative_num_steps = 1
    server_args.speculative_eagle_topk = 1
    if not server_args.disable_overlap_schedule:
        logger.info("%s runs without SGLang's overlap scheduling.", NAME)
        server_args.disable_overlap_schedule = True


def refuse(server_args: Any) -> None:
    """Raise UnsupportedError for the first argument that the algorithm does not go with."""
    for name, (needed, what) in REFUSED.items():
        value = getattr(server_args, name)
        if value is not None and value != needed:
            flag = "--" + name.replace("_", "-")
            raise UnsupportedError(f"{flag} is {value}; {NAME} does not support {what}.")


def refuse_settings(resolved: Resolved) -> None:
    """Raise for settings that a server cannot have, and warn of those that mean nothing in one.

    Raises:
        SettingsError: a name that no plugin gives, or a vocabulary that cannot be read.
        UnsupportedError: a verifier that cannot serve every request.
    """
    settings, origins = resolved.settings, resolved.origins
    for kind in ("drafters", "schedules", "verifiers"):
        provider(kind, getattr(settings, kind[:-1]))
    if settings.verifier == "greedy":
        raise UnsupportedError(
            f'verifier is "greedy" ({origins["verifier"]}), which cannot serve a request with a temperature '
            'above 0, and a server gets such. Leave it out: "sampling" decides greedily for those without.'
        )
    if settings.rollback == "crop" and settings.fixed_tree is not None:
        raise SettingsError(
            f'rollback is "crop" ({origins["rollback"]}), but what is accepted of a tree '
            f"({origins['tree_budget']}) has to be gathered; leave rollback out."
        )
    if isinstance(settings.draft_vocab, str) and not Path(settings.draft_vocab).is_file():
        raise SettingsError(
            f"draft_vocab is {settings.draft_vocab} ({origins['draft_vocab']}): no such file."
        )
    idle = [f"{name} ({origins[name]})" for name in MEANINGLESS if origins[name] != "default"]
    if idle:
        logger.warning("Settings that mean nothing in a server and are left out: %s.", ", ".join(idle))


def refuse_length(resolved: Resolved, block_size: int) -> None:
    """Raise SettingsError where more is to be verified than is drafted."""
    length = resolved.settings.verify_length
    if isinstance(length, int) and length > block_size:
        raise SettingsError(
            f"verify_length is {length} ({resolved.origins['verify_length']}), but a block has {block_size} "
            "slots, the anchor included."
        )


def refuse_maskless(server_args: Any) -> None:
    """Raise UnsupportedError for trees on an attention backend that would not read their mask."""
    known = (*READS_MASKS, "torch_native") if server_args.device == "cpu" else READS_MASKS
    named = {name: getattr(server_args, name) for name in ATTENTION}
    for name, value in named.items():
        if value is not None and value not in known:
            raise UnsupportedError(
                f"--{name.replace('_', '-')} is {value}, which verifies chains only. For trees give "
                f"--attention-backend {' or '.join(READS_MASKS)}."
            )
    if not any(named.values()):
        raise UnsupportedError(
            f"Trees need an attention backend that reads a mask; give --attention-backend {READS_MASKS[0]}."
        )


def refuse_recurrent(model_config: ModelConfig) -> None:
    """Raise UnsupportedError for targets with layers whose state is not a KV cache (GDN, Mamba)."""
    if mambaish_config(model_config) is not None:
        raise UnsupportedError(
            f"{model_config.model_path} has recurrent layers. SGLang commits their state by steps of its own "
            f"algorithms, which {NAME} does not drive; use SGLang's DFLASH for this target."
        )


def refuse_auto(server_args: Any) -> None:
    """Raise UnsupportedError where the schedule "auto" could not learn: it goes by the host's seconds."""
    if server_args.device != "cpu":
        raise UnsupportedError(
            'schedule is "auto", which learns from seconds that the host measures; on a device that runs '
            'beside the host they mean nothing. Leave it out, or use "fixed" with a verify_length.'
        )
    if server_args.tp_size > 1:
        raise UnsupportedError(
            f'schedule is "auto" and --tp-size is {server_args.tp_size}: ranks would measure different '
            'seconds and plan different cycles. Leave it out, or use "fixed".'
        )


def local_folder(path: str, revision: str | None, cache: str | None) -> str:
    """The folder itself, or a model id's copy in SGLang's download folder (fetched whole, unless offline).

    Raises:
        SettingsError: it is neither.
    """
    if Path(path).is_dir():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return str(snapshot_download(path, revision=revision, cache_dir=cache))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise SettingsError(
            f"{path} is no folder here, and cannot be had as a model id: {' '.join(str(error).split())}"
        ) from error
