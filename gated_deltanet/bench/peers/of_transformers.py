"""transformers' torch fallback: what Qwen3-Next and its kin run where there is no GPU kernel."""

from inspect import unwrap

from torch import Tensor
from transformers.models.qwen3_next import modeling_qwen3_next

from .. import cases
from ..cases import Call, Inputs

# Under their wrappers, which warn, or choose a GPU kernel.
chunked = unwrap(modeling_qwen3_next.torch_chunk_gated_delta_rule)
recurrent = unwrap(modeling_qwen3_next.torch_recurrent_gated_delta_rule)


def rule(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return chunked(q, k, v, g=log_alpha, beta=beta, initial_state=state, output_final_state=True)


def forward(inputs: Inputs) -> Call:
    return cases.forward(rule, unscaled(inputs))


def forward_backward(inputs: Inputs) -> Call:
    return cases.forward_backward(rule, unscaled(inputs))


def step(inputs: Inputs) -> Call:
    def one(token: Inputs, state: Tensor) -> Tensor:
        q, k, v, log_alpha, beta = token.values()
        return recurrent(q, k, v, g=log_alpha, beta=beta, initial_state=state, output_final_state=True)[1]

    return cases.decode(one, cases.each_token(unscaled(inputs)), inputs["state"], inputs["state"].clone())


def unscaled(inputs: Inputs) -> Inputs:
    """The functions scale q by d_k^-1/2 themselves."""
    return {**inputs, "q": inputs["q"] * inputs["q"].shape[-1] ** 0.5}


CALLS = {"forward": forward, "forward+backward": forward_backward, "step": step}
DTYPES = ("float32", "bfloat16")
