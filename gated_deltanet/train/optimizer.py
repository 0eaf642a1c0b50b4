"""AdamW as section 4 has it: which parameters decay, and the learning rate as a function of tokens seen."""

import math

from torch import nn
from torch.optim import AdamW

from .recipe import Recipe

NEVER_DECAYED = ("A_log", "dt_bias")


def make_optimizer(model: nn.Module, recipe: Recipe) -> AdamW:
    decayed, others = groups(model)
    return AdamW(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=recipe.peak_lr,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.eps,
        fused=True,
    )


def groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Those that decay, and those that do not."""
    named = list(model.named_parameters())
    return [p for name, p in named if decays(name, p)], [p for name, p in named if not decays(name, p)]


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Matrices, short convolutions and embeddings do: these are the head too, in all our presets.

    Norms, biases, D and other vectors do not, nor does what sets how fast a layer forgets, in Mamba a matrix.
    """
    return parameter.ndim > 1 and not name.endswith(NEVER_DECAYED)


def learning_rate(recipe: Recipe, tokens: int) -> float:
    """After so many tokens, those of the step included: linear up, a cosine down."""
    if tokens < recipe.warmup_tokens:
        return recipe.peak_lr * tokens / recipe.warmup_tokens
    done = min(1.0, (tokens - recipe.warmup_tokens) / (recipe.tokens - recipe.warmup_tokens))
    return recipe.peak_lr * (recipe.final_lr + (1 - recipe.final_lr) * (1 + math.cos(math.pi * done)) / 2)
