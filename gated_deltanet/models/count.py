"""What a model costs, from its config: nothing is allocated."""

from collections import Counter
from collections.abc import Iterator
from functools import cache

import torch
from torch import nn

from gated_deltanet.layers import Attention
from gated_deltanet.layers.attention import AttentionMixer
from gated_deltanet.layers.short_conv import ShortConv

from .block import Block
from .config import ModelConfig
from .state import tensors

ACTIVATION_BYTES = 2  # bfloat16


def parameters(config: ModelConfig) -> int:
    """All of them; tied embeddings once."""
    embeddings = config.vocab_size * config.d_model * (1 if config.tied else 2)
    return embeddings + config.d_model + sum(n * numel(block) for block, n in blocks(config))


def state_bytes(config: ModelConfig) -> int:
    """Of one sequence, whatever its length: float32 matrices, bfloat16 inputs of short convolutions. No KV cache."""
    recurrent = [(block, n) for block, n in blocks(config) if not isinstance(block.mixer, AttentionMixer)]
    return sum(n * recurrent_bytes(block, config.d_model) for block, n in recurrent)


def kv_bytes(config: ModelConfig, length: int) -> int:
    """Of one sequence of so many tokens: the bfloat16 keys and values of its attention layers."""
    mixers = [config.mixer(layer) for layer in range(config.n_layers)]
    return sum(
        2 * m.H_kv * m.d_head * min(m.window or length, length) * ACTIVATION_BYTES
        for m in mixers
        if isinstance(m, Attention)
    )


def flops_per_token(config: ModelConfig, length: int) -> float:
    """Forward, averaged over a sequence of so many tokens: matrices, convolutions, head, and the mixers' own."""
    matrices = config.vocab_size * config.d_model + sum(n * multiplied(block) for block, n in blocks(config))
    return 2 * matrices + sum(config.mixer(layer).flops(length) for layer in range(config.n_layers))


def blocks(config: ModelConfig) -> Iterator[tuple[Block, int]]:
    """One bfloat16 block on the meta device for each kind of layer, and how many are of that kind."""
    layers = range(config.n_layers)
    kinds = [(config.mixer(layer), layer > 0) for layer in layers]  # HGRN2's first layer has no lower bound
    for kind, n in Counter(kinds).items():
        yield meta_block(config, kinds.index(kind)), n


@cache
def meta_block(config: ModelConfig, layer: int) -> Block:
    with torch.device("meta"):
        return Block(config, layer).to(torch.bfloat16)


def numel(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def multiplied(block: Block) -> int:
    """The weights that each token is multiplied with."""
    return sum(numel(module) for module in block.modules() if isinstance(module, nn.Linear | ShortConv))


@torch.no_grad()
def recurrent_bytes(block: Block, d_model: int) -> int:
    """Of the state after one token, or any number of them."""
    token = torch.empty(1, 1, d_model, dtype=torch.bfloat16, device="meta")
    return sum(x.nbytes for x in tensors(block.mixer(token)[1]))
