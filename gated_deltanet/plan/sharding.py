"""How a model lies on many GPUs, and what they must tell each other."""

import re
from typing import NamedTuple

from .devices import GPU

HALF, FLOAT = 2, 4  # bytes: bfloat16 weights are gathered, float32 gradients are summed
ACHIEVED = 0.7  # share of a link's rate that collectives reach


class Sharding(NamedTuple):
    """`replicas` copies of the model, each on `shards` GPUs."""

    replicas: int
    shards: int


def parse_sharding(text: str, gpus: int) -> Sharding:
    """fsdp: one copy over all GPUs. ddp: a copy on each. hsdp:RxS: R copies on S each."""
    if text == "fsdp":
        return Sharding(1, gpus)
    if text == "ddp":
        return Sharding(gpus, 1)
    match = re.fullmatch(r"hsdp:(\d+)[x×](\d+)", text)
    if not match:
        raise ValueError(f"--parallel is {text!r}, expected fsdp, ddp or hsdp:RxS (R copies on S GPUs each)")
    sharding = Sharding(int(match[1]), int(match[2]))
    if sharding.replicas * sharding.shards != gpus:
        raise ValueError(f"--parallel is {text!r}, expected R × S = {gpus}, the number of GPUs")
    return sharding


def shard_bytes(parameters: int, sharding: Sharding, micro_steps: int) -> float:
    """What a GPU receives in a step from the others that hold the same copy: for each micro-batch the weights, for
    forward and again for backward, and the sums of gradients."""
    return micro_steps * parameters * (2 * HALF + FLOAT) * (1 - 1 / sharding.shards)


def replica_bytes(parameters: int, sharding: Sharding) -> float:
    """What a GPU receives in a step from those that hold the same part of other copies: gradients, once, as a ring
    sums them."""
    return 2 * parameters / sharding.shards * FLOAT * (1 - 1 / sharding.replicas)


def seconds(parameters: int, sharding: Sharding, micro_steps: int, gpu: GPU) -> float:
    together = min(gpu.per_node, sharding.shards)  # of one copy, on one node
    spread = max(1, gpu.per_node // sharding.shards)  # holding the same part of other copies, on one node
    between_shards = rate(gpu, together, sharding.shards > gpu.per_node)
    between_replicas = rate(gpu, spread, sharding.replicas * sharding.shards > gpu.per_node)
    return (
        shard_bytes(parameters, sharding, micro_steps) / between_shards
        + replica_bytes(parameters, sharding) / between_replicas
    )


def rate(gpu: GPU, members: int, leaves_node: bool) -> float:
    """Bytes/s into each GPU of a group with so many members on a node: rings use all their network cards at once."""
    return ACHIEVED * (min(gpu.link, members * gpu.network) if leaves_node else gpu.link)
