"""How a model's parameters start."""

from torch import nn

STD = 0.02


def init_weights(model: nn.Module) -> None:
    """Start every parameter of a `CausalLM`, also after `to_empty` from the meta device.

    As in GPT-2, matrices and embeddings are N(0, 0.02²), and those that write to the residual stream (`out_proj` of
    mixers and MLPs) are narrower by √(number of branches), so that the stream's variance does not grow with the depth:
    1/√(2 · layers), or 1/√layers without MLPs. Everything else (decays, convolutions, norms, D) starts as its own
    `reset_parameters` says. The official code differs: only embeddings are N(0, 0.02²), matrices start as torch's
    Linear does, and of those that write to the stream MLPs' and attention's are narrower, Gated DeltaNet's is not.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=STD)
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset) and not isinstance(module, nn.Linear | nn.Embedding):
            reset()  # after the matrices: Mamba's dt_proj has a start of its own
    branches = [weight for name, weight in model.named_parameters() if name.endswith("out_proj.weight")]
    for weight in branches:
        nn.init.normal_(weight, std=STD / len(branches) ** 0.5)
