"""A draft layer: attention, MLP and, for DFlash2, a dynamic convolution around each."""

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from dflash_core.drafter.attention import Block, ContextProjection, DraftAttention
from dflash_core.drafter.context import ContextView
from dflash_core.drafter.weights import RMSNorm, Weights, frozen, linear
from dflash_core.errors import UnsupportedError
from dflash_core.spec import ConvSpec, DraftSpec
from dflash_kernels.dynamic_conv import dynamic_conv

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class GatedMLP(nn.Module):
    """`down(act(gate(x)) * up(x))`, gate and up as one product."""

    def __init__(self, spec: DraftSpec, weights: Weights, name: str) -> None:
        super().__init__()
        if spec.hidden_act not in ACTIVATIONS:
            raise UnsupportedError(
                f"hidden_act {spec.hidden_act!r} is not known here; known are {', '.join(ACTIVATIONS)}."
            )
        self.activation = ACTIVATIONS[spec.hidden_act]
        self.gate_up_proj = linear(weights.rows(f"{name}.gate_proj.weight", f"{name}.up_proj.weight"))
        self.down_proj = linear(weights(f"{name}.down_proj.weight"))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        out: Tensor = self.down_proj(self.activation(gate) * up)
        return out


class DynamicConv(nn.Module):
    """Kernels before and after a sublayer; both come from one projection of the sublayer's normed input."""

    def __init__(self, conv: ConvSpec, weights: Weights, name: str) -> None:
        super().__init__()
        self.conv = conv
        self.base_kernel = frozen(weights(f"{name}.base_kernel"))  # [2, K, D]
        self.kernel_projection = linear(weights(f"{name}.kernel_projection.weight"))

    def before(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Normed input [B, S, D] to the sublayer's input, and the kernel [B, S, K, G] for `after`."""
        groups = x.shape[-1] // self.conv.group_size
        kernels = self.kernel_projection(x).view(*x.shape[:2], 2, self.conv.kernel_size, groups)
        return dynamic_conv(x, kernels[:, :, 0], self.base_kernel[0]), kernels[:, :, 1]

    def after(self, x: Tensor, kernel: Tensor) -> Tensor:
        """The sublayer's output, or its leading slots."""
        return dynamic_conv(x, kernel[:, : x.shape[1]], self.base_kernel[1])


class DraftLayer(nn.Module):
    """Pre-norm residual layer. The context reaches it only as keys and values."""

    def __init__(self, spec: DraftSpec, weights: Weights, context: ContextProjection, index: int) -> None:
        super().__init__()
        name = f"layers.{index}"
        self.input_layernorm = RMSNorm(weights(f"{name}.input_layernorm.weight"), spec.rms_norm_eps)
        self.self_attn = DraftAttention(spec, weights, context, index)
        self.post_attention_layernorm = RMSNorm(
            weights(f"{name}.post_attention_layernorm.weight"), spec.rms_norm_eps
        )
        self.mlp = GatedMLP(spec, weights, f"{name}.mlp")
        conv = spec.conv
        self.attention_conv = DynamicConv(conv, weights, f"{name}.attention_conv") if conv else None
        self.mlp_conv = DynamicConv(conv, weights, f"{name}.mlp_conv") if conv else None

    def forward(
        self, x: Tensor, block: Block, k_pool: Tensor, v_pool: Tensor, view: ContextView, outputs: int
    ) -> Tensor:
        """x [B, S, D] to [B, outputs, D]. All slots are keys; only the leading `outputs` slots go on, which
        is enough for them because the convolutions look back, never ahead."""
        attention_in = self.input_layernorm(x)
        if self.attention_conv is None:
            attended = self.self_attn(attention_in, block, k_pool, v_pool, view, outputs)
        else:
            attention_in, kernel = self.attention_conv.before(attention_in)
            attended = self.self_attn(attention_in, block, k_pool, v_pool, view, outputs)
            attended = self.attention_conv.after(attended, kernel)
        x = x[:, :outputs] + attended
        mlp_in = self.post_attention_layernorm(x)
        if self.mlp_conv is None:
            mixed: Tensor = self.mlp(mlp_in)
        else:
            mlp_in, kernel = self.mlp_conv.before(mlp_in)
            mixed = self.mlp_conv.after(self.mlp(mlp_in), kernel)
        return x + mixed
