"""flash-linear-attention's kernels, on a GPU only: what others train and decode with there."""

from fla.ops.gated_delta_rule import (  # pyright: ignore[reportMissingImports]
    chunk_gated_delta_rule,
    fused_recurrent_gated_delta_rule,
)
from torch import Tensor

from .. import cases
from ..cases import Call, Inputs


def rule(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return chunk_gated_delta_rule(q, k, v, log_alpha, beta, scale=1.0, initial_state=state, output_final_state=True)


def forward(inputs: Inputs) -> Call:
    return cases.forward(rule, inputs)


def forward_backward(inputs: Inputs) -> Call:
    return cases.forward_backward(rule, inputs)


def step(inputs: Inputs) -> Call:
    def one(token: Inputs, state: Tensor) -> Tensor:
        q, k, v, log_alpha, beta = token.values()
        options = {"beta": beta, "scale": 1.0, "initial_state": state, "output_final_state": True}
        return fused_recurrent_gated_delta_rule(q, k, v, log_alpha, **options)[1]

    return cases.decode(one, cases.each_token(inputs), inputs["state"], inputs["state"].clone())


CALLS = {"forward": forward, "forward+backward": forward_backward, "step": step}
DTYPES = ("float32", "bfloat16")
