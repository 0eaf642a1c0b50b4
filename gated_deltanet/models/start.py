"""How a model's parameters start: by a rule that knows the width, or as in GPT-2, whose rule belongs to one width."""

import math
from collections.abc import Callable

from torch import Tensor, nn

from gated_deltanet.layers.decay import Decay
from gated_deltanet.layers.mamba import MambaMixer
from gated_deltanet.naming import unknown

OUT = 0.2  # of torch's start ÷ √branches, for out_proj: docs/log.md
STD = 0.02


def init_weights(model: nn.Module, start: str = "width") -> None:
    """Start every parameter of a `CausalLM`, also after `to_empty` from the meta device. start: one of STARTS."""
    if start not in STARTS:
        raise unknown("start", start, STARTS)
    STARTS[start](model)


def by_width(model: nn.Module) -> None:
    """The official code's start at the paper's width, and the same sizes in the stream at any other.

    Embeddings are N(0, 1/d_model): 0.02² at the paper's 2400, where official code has that. Matrices are uniform in
    ± fan_in^−½, torch's Linear, unless the mixer's authors have another start (`reset_projections`). What writes to the
    residual stream (`out_proj` of mixers and MLPs) is narrower, so that at first a token's embedding is most of it.
    Everything else (decays, convolutions, norms, D) starts as its own `reset_parameters` says.

    Mamba without MLPs has neither these nor an output norm to outgrow wide embeddings with: there nothing is wider than
    N(0, 0.02²), its authors' embeddings at any width, and `out_proj` is as its authors start it.
    """
    widest, out = (STD, 1.0) if is_mamba_alone(model) else (math.inf, OUT)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=min(widest, module.embedding_dim**-0.5))
        elif isinstance(module, nn.Linear):
            uniform(module.weight, widest=widest)
    zero_biases(model)
    for module in model.modules():
        for name in ("reset_projections", "reset_parameters"):
            reset_if_its_own(module, name)
    branches = branches_of(model)
    for weight in branches:
        uniform(weight, out / len(branches) ** 0.5)


def as_gpt2(model: nn.Module) -> None:
    """How our models started until November 2026, to repeat their runs.

    Matrices and embeddings are N(0, 0.02²) at any width, and those that write to the residual stream are narrower by
    √(number of branches), so that its variance does not grow with the depth. All decays have A in U(1, 16).
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=STD)
    zero_biases(model)
    for module in model.modules():
        if isinstance(module, Decay):
            module.reset_parameters(least=1.0)
        else:
            reset_if_its_own(module, "reset_parameters")
    branches = branches_of(model)
    for weight in branches:
        nn.init.normal_(weight, std=STD / len(branches) ** 0.5)


STARTS: dict[str, Callable[[nn.Module], None]] = {"width": by_width, "gpt2": as_gpt2}


def is_mamba_alone(model: nn.Module) -> bool:
    branches = [module for module in model.modules() if hasattr(module, "out_proj")]
    return all(isinstance(module, MambaMixer) for module in branches)


def uniform(weight: Tensor, share: float = 1.0, widest: float = math.inf) -> None:
    """As torch starts a Linear: [d_out, d_in] within ± d_in^−½, or a share of that. widest: standard deviation."""
    bound = min(share * weight.shape[1] ** -0.5, 3**0.5 * widest)
    nn.init.uniform_(weight, -bound, bound)


def zero_biases(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def reset_if_its_own(module: nn.Module, name: str) -> None:
    reset = getattr(module, name, None)
    if callable(reset) and not isinstance(module, nn.Linear | nn.Embedding):
        reset()


def branches_of(model: nn.Module) -> list[nn.Parameter]:
    """What writes to the residual stream: one matrix a mixer and one an MLP."""
    return [weight for name, weight in model.named_parameters() if name.endswith("out_proj.weight")]
