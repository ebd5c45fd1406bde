"""An attention function that does not copy K and V for every query head."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED = "sdpa_of_grouped_heads"
"""Its name among transformers' attention implementations, which takes anything with "flash" for another."""

UNUSUAL = ("softcap", "position_bias")
"""Arguments of which "sdpa" refuses the one and has a way of its own for the other."""


def use_grouped_attention(model: PreTrainedModel) -> bool:
    """Let a model on the CPU that uses "sdpa" use this instead; its results are the same.

    Returns:
        whether it does now.
    """
    config = model.config.get_text_config(decoder=True)
    if config._attn_implementation == "sdpa" and model.device.type == "cpu":
        AttentionInterface.register(GROUPED, grouped_attention)
        AttentionMaskInterface.register(GROUPED, sdpa_mask)
        model.set_attn_implementation(GROUPED)
    return bool(config._attn_implementation == GROUPED)


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Masked attention over K and V [B, Hkv, T, d] as they are.

    transformers' "sdpa" repeats them for the H / Hkv query heads of a group, though torch's kernel for
    the CPU does without. What the plain masked case does not cover stays transformers' own.
    """
    unusual = options.get("dropout") or any(options.get(name) is not None for name in UNUSUAL)
    if attention_mask is None or unusual:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return result
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return output.transpose(1, 2).contiguous(), None
