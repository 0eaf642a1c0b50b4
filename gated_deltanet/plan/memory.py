"""Memory of one device during a training step, in bytes.

What autograd keeps of a block is not estimated but counted: the block is run on tensors without memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from gated_deltanet.models import ModelConfig, count
from gated_deltanet.models.model import Block
from gated_deltanet.ops.linear_cross_entropy import blocked, cpp

from .sharding import FLOAT, HALF, Sharding

CHUNK = 64  # tokens between the states that a GPU's recurrent kernels write


class Memory(NamedTuple):
    weights: float  # float32
    gradients: float  # float32
    optimiser: float  # AdamW's two moments, float32
    gathered: float  # bfloat16 copies of the weights in use, and a block's gradients before they are sharded
    activations: float  # kept for backward
    work: float  # while one block, or a part of the loss, is computed

    @property
    def total(self) -> float:
        return sum(self)


class Step(NamedTuple):
    """What one device does at a time."""

    batch: int  # sequences
    length: int
    precision: str  # "float32", "bfloat16" (autocast, on a CPU), or "gpu": bfloat16 throughout, as FSDP2 casts
    checkpointing: bool = False


def train_memory(config: ModelConfig, step: Step, sharding: Sharding) -> Memory:
    parameters = count.parameters(config)
    own, blocks = parameters / sharding.shards, kept(config, step)
    return Memory(
        weights=FLOAT * own,
        gradients=FLOAT * own,
        optimiser=2 * FLOAT * own,
        gathered=gathered_bytes(config, step, sharding),
        activations=activation_bytes(config, step, blocks),
        work=max(blocks) + chunk_states(config, step) + loss_bytes(config, step),
    )


def gathered_bytes(config: ModelConfig, step: Step, sharding: Sharding) -> float:
    """Of FSDP embedding and head, a block and the next one, and a block's gradients in both precisions; of DDP a copy
    of all. On a CPU autocast's copies are among the activations."""
    if step.precision != "gpu":
        return 0
    if sharding.shards == 1:
        return HALF * count.parameters(config)
    largest = max(count.numel(block) for block, _ in count.blocks(config))
    embeddings = config.vocab_size * config.d_model * (1 if config.tied else 2)
    return HALF * (embeddings + 2 * largest) + (HALF + FLOAT) * largest


def activation_bytes(config: ModelConfig, step: Step, blocks: list[float]) -> float:
    """With checkpointing only the blocks' inputs: what is inside them lives one block at a time, and is work."""
    between = step.batch * step.length * config.d_model * (HALF if step.precision == "gpu" else FLOAT)
    return 3 * between + (config.n_layers * between if step.checkpointing else sum(blocks))  # embedding, norm, loss


def loss_bytes(config: ModelConfig, step: Step) -> float:
    """The logits of some tokens; on a GPU also their softmax and its gradient, on a CPU the head's gradient, kept."""
    tokens, V = step.batch * step.length, config.vocab_size
    if step.precision == "gpu":
        return 3 * FLOAT * V * min(tokens, blocked.most_tokens(V))
    return FLOAT * V * (min(tokens, cpp.block_size(V)) + config.d_model)


def chunk_states(config: ModelConfig, step: Step) -> float:
    """Of the layer with the largest state."""
    states = (count.state_bytes(config) / config.n_layers) * len(config.mixers)  # at most: all in one kind of layer
    return states * step.batch * step.length / CHUNK if step.precision == "gpu" else 0


def kept(config: ModelConfig, step: Step) -> list[float]:
    """For each layer the bytes that autograd keeps of it."""
    like = {config.mixer(layer): layer for layer in range(config.n_layers)}  # the last: HGRN2's first keeps less
    return [kept_by(config, like[config.mixer(layer)], step) for layer in range(config.n_layers)]


@cache
def kept_by(config: ModelConfig, layer: int, step: Step) -> float:
    """What the block keeps for backward, its input included, its parameters not; each tensor once."""
    found: list[Tensor] = []
    with FakeTensorMode(), computing_in(step.precision):
        block = Block(config, layer)
        x = torch.empty(step.batch, step.length, config.d_model, requires_grad=True)
        with saved_tensors_hooks(lambda saved: found.append(saved) or saved, lambda saved: saved):
            block(x, keep_state=False)
    own = {parameter.untyped_storage()._cdata for parameter in block.parameters()}
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in found}
    return sum(size for storage, size in storages.items() if storage not in own)


@contextmanager
def computing_in(precision: str) -> Iterator[None]:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16 if precision == "gpu" else torch.float32)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            yield
    finally:
        torch.set_default_dtype(before)
