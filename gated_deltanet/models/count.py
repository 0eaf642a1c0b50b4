"""What a model costs, from its config: nothing is allocated."""

from collections import Counter
from collections.abc import Iterator
from functools import cache

import torch
from torch import nn

from gated_deltanet.layers.short_conv import ShortConv

from .config import ModelConfig
from .model import Block


def parameters(config: ModelConfig) -> int:
    """All of them; tied embeddings once."""
    embeddings = config.vocab_size * config.d_model * (1 if config.tied else 2)
    return embeddings + config.d_model + sum(n * numel(block) for block, n in blocks(config))


def state_bytes(config: ModelConfig) -> int:
    """Of one sequence, whatever its length: float32 matrices, bfloat16 inputs of short convolutions. No KV cache."""
    return sum(config.mixer(layer).state_bytes(0) for layer in range(config.n_layers))


def kv_bytes(config: ModelConfig, length: int) -> int:
    """Of one sequence of so many tokens: the bfloat16 keys and values of its attention layers."""
    return sum(config.mixer(layer).state_bytes(length) for layer in range(config.n_layers)) - state_bytes(config)


def flops_per_token(config: ModelConfig, length: int) -> float:
    """Forward, averaged over a sequence of so many tokens: matrices, convolutions, head, and the mixers' own."""
    matrices = config.vocab_size * config.d_model + sum(n * multiplied(block) for block, n in blocks(config))
    return 2 * matrices + sum(config.mixer(layer).flops(length) for layer in range(config.n_layers))


def blocks(config: ModelConfig) -> Iterator[tuple[Block, int]]:
    """One block on the meta device for each kind of layer, and how many are of that kind."""
    layers = range(config.n_layers)
    kinds = [(config.mixer(layer), layer > 0) for layer in layers]  # HGRN2's first layer has no lower bound
    for kind, n in Counter(kinds).items():
        yield meta_block(config, kinds.index(kind)), n


@cache
def meta_block(config: ModelConfig, layer: int) -> Block:
    with torch.device("meta"):
        return Block(config, layer)


def numel(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def multiplied(block: Block) -> int:
    """The weights that each token is multiplied with."""
    return sum(numel(module) for module in block.modules() if isinstance(module, nn.Linear | ShortConv))
