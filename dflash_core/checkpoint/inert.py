"""Keys whose values change nothing about what a draft computes, and keys understood at one value only."""

from __future__ import annotations

INERT = frozenset(
    {
        # how the file was made
        "_name_or_path",
        "_commit_hash",
        "transformers_version",
        # tokens that the target's tokenizer and generation settings decide about
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        # training
        "attention_dropout",
        "initializer_range",
        # the head and the embedding are the target's, or tensors of their own
        "tie_word_embeddings",
        # how a library runs the model
        "_attn_implementation",
        "_attn_implementation_internal",
        "_attn_implementation_autoset",
        "flex_attention_backend",
        "use_cache",
        # what transformers writes into every full dump of a config
        "chunk_size_feed_forward",
        "finetuning_task",
        "id2label",
        "is_decoder",
        "is_encoder_decoder",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "tokenizer_class",
        "torchscript",
    }
)
"""Anywhere in the description of the draft's body. Kept in `DraftSpec.extra`."""

SPECULATORS_INERT = INERT | {
    # how the file was made
    "auto_map",
    "config_class",
    "speculators_version",
    # training: how often, with what losses, how many anchors
    "auf",
    "lambda_base_decay_ratio",
    "lambda_base_start",
    "max_anchors",
    # sizes of the Domino head, written whether or not there is one; projector_type says that there is none
    "emb_dim",
    "gru_hidden_dim",
    "pure_draft_prefix_len",
}
"""At the top level of a speculators config, beside the nested body."""

LOCKED: dict[str, tuple[tuple[object, ...], str]] = {
    "add_swa_attention_sink_bias": ((False,), "MiMo's sinks of sliding layers"),
    "attention_mode": (("gqa",), "another attention than grouped-query"),
    "compression_config": ((), "quantised weights"),
    "hidden_act": (("silu",), "another activation"),
    "is_neox_style": ((True,), "interleaved rotary embeddings"),
    "logit_scale": ((1, 1.0), "a scale on the logits"),
    "mlp_bias": ((False,), "biases in the MLP"),
    "model_type": (("qwen3", "dspark"), "another body than Qwen3's"),
    "partial_rotary_factor": ((1, 1.0), "rotating a part of each head"),
    "quantization_config": ((), "quantised weights"),
    "rope_is_neox_style": ((True,), "interleaved rotary embeddings"),
    "use_aux_hidden_state": ((True,), "a draft that reads no target layers"),
}
"""Key -> the values at which it is understood, and what any other would mean."""
