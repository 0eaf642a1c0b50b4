"""Our ops as entries of the registry of the package `kernels`, whose `kernelize` puts them into transformers' models.

Such an entry is an object with a `load`: it gives a module without a constructor, whose forward takes what the one in
its place takes. For a function of transformers it is called as that function, for a layer with the layer as `self`.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn

from . import functions


class ChunkRule(nn.Module):
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        chunk_size: int = 64,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None]:
        state = (chunk_size, initial_state, output_final_state)
        return functions.gated_delta_rule(query, key, value, g, beta, *state, use_qk_l2norm_in_kernel, **others)


class RecurrentRule(nn.Module):
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None]:
        state = (1, initial_state, output_final_state)
        return functions.gated_delta_rule(query, key, value, g, beta, *state, use_qk_l2norm_in_kernel, **others)


class Convolution(nn.Module):
    def forward(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **others: Any
    ) -> Tensor:
        return functions.causal_conv1d_fn(x, weight, bias, activation, **others)


class ConvolutionUpdate(nn.Module):
    def forward(
        self,
        x: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        return functions.causal_conv1d_update(x, conv_state, weight, bias, activation)


class Norm(nn.Module):
    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        own = type(self).forward  # of the layer that it was put into
        norm = functions.gated_norm if functions.gated_by_silu(self) else own
        return norm(self, hidden_states, gate)


class Entry(NamedTuple):
    layer: type[nn.Module]

    def load(self) -> type[nn.Module]:
        return self.layer


LAYERS = {
    "chunk_gated_delta_rule": ChunkRule,
    "fused_recurrent_gated_delta_rule": RecurrentRule,
    "causal_conv1d_fn": Convolution,
    "causal_conv1d_update": ConvolutionUpdate,
    "RMSNormGated": Norm,
}


def kernel_mapping() -> dict[str, dict[str, Entry]]:
    """For `kernels.use_kernel_mapping` or `kernels.register_kernel_mapping`; nothing is downloaded.

    with use_kernel_mapping(kernel_mapping()):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    """
    return {name: {"cpu": Entry(layer)} for name, layer in LAYERS.items()}
