"""A training run on given devices: whether it fits, how long it takes, and how long its sequences could be."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gated_deltanet.matmul import matmul_flops
from gated_deltanet.models import ModelConfig, count, get_preset

from . import sharding as shards
from .devices import GPU, available_bytes, get_gpu, memory_bytes
from .memory import Memory, Step, train_memory
from .sharding import Sharding, parse_sharding
from .speed import Rates, cpu_rates, gpu_rates, seconds_per_token, train_flops

USABLE = 0.92  # share of the memory: the rest is the driver's, the allocator's, the collectives' buffers
LONGEST = 2**27  # tokens: further the search does not go
GRAIN = 256  # tokens: finer it does not look
DAY = 86400
ADAM_BYTES = 28  # of AdamW for each parameter: weight, gradient and two moments read, all but the gradient written


class Cluster(NamedTuple):
    devices: int
    sharding: Sharding
    memory: float  # of each device, bytes
    peak: float  # FLOP/s of each: what MFU is a share of
    rates: Rates
    precision: str
    gpu: GPU | None  # None: this machine


class Job(NamedTuple):
    config: ModelConfig
    tokens: int
    length: int
    batch_tokens: int  # of a step
    checkpointing: bool = False
    micro_batch: int | None = None  # sequences at a time on a device; None: as many as fit


def plan(
    model: str | ModelConfig,
    *,
    tokens: int = 100 * 10**9,
    length: int = 4096,
    batch_tokens: int = 2**19,
    micro_batch: int | None = None,
    checkpointing: bool = False,
    gpus: int = 1,
    gpu: str = "h100",
    parallel: str = "fsdp",
    here: bool = False,
    dtype: str = "float32",
) -> dict[str, Any]:
    """What training a model on so many tokens takes, as plain JSON values; memory and longest length are of one device.

    model: a preset's name or a config. length: of a sequence. batch_tokens: of a step, over all devices. micro_batch:
    sequences at a time on a device; None for as many as fit. checkpointing: keep only the blocks' inputs for backward.
    gpus, gpu: how many of which (`GPUS`). parallel: "fsdp", one copy of the model over all GPUs; "ddp", one on each;
    "hsdp:RxS", R copies on S each. here: for this machine instead, whose torch.mm is timed now in dtype, "float32" or
    "bfloat16" (autocast).
    """
    at_least_1("gpus", gpus)
    at_least_1("micro-batch", micro_batch)
    config = get_preset(model) if isinstance(model, str) else model
    cluster = this_machine(dtype) if here else of_gpus(get_gpu(gpu), gpus, parse_sharding(parallel, gpus))
    job = Job(config, tokens, length, batch_tokens, checkpointing, micro_batch)
    return {"length": length, "peak_flops": cluster.peak, **estimate(job, cluster)}


def at_least_1(option: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"--{option} is {value}, expected at least 1")


def this_machine(dtype: str) -> Cluster:
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"--dtype is {dtype!r}, expected float32 or bfloat16")
    memory = available_bytes() or memory_bytes()
    if memory is None:
        raise ValueError("this system does not tell how much memory it has, and --here needs to know")
    return of_this_machine(matmul_flops(getattr(torch, dtype), seconds=1.0), memory, dtype)


def of_gpus(gpu: GPU, devices: int, sharding: Sharding) -> Cluster:
    return Cluster(devices, sharding, gpu.memory, gpu.flops, gpu_rates(gpu), "gpu", gpu)


def of_this_machine(flops: float, memory: float, dtype: str) -> Cluster:
    """flops: FLOP/s of torch.mm, measured. memory: bytes that are available."""
    return Cluster(1, Sharding(1, 1), memory, flops, cpu_rates(flops), dtype, None)


def estimate(job: Job, cluster: Cluster) -> dict[str, Any]:
    sequences = sequences_of(job, cluster)
    micro_batch = micro_batch_of(job, cluster, sequences)
    micro_steps = -(-sequences // micro_batch)
    memory = memory_of(job, cluster, micro_batch, job.length)
    tokens = sequences * job.length * cluster.devices
    return {
        "parameters": count.parameters(job.config),
        "flops_per_token": train_flops(job.config, job.length),
        "flops": train_flops(job.config, job.length) * job.tokens,
        "devices": cluster.devices,
        "replicas": cluster.sharding.replicas,
        "shards": cluster.sharding.shards,
        "sequences_per_device": sequences,
        "micro_batch": micro_batch,
        "micro_steps": micro_steps,
        "tokens_per_step": tokens,
        "memory": {**memory._asdict(), "total": memory.total, "usable": USABLE * cluster.memory},
        "fits": memory.total <= USABLE * cluster.memory,
        "state_bytes": count.state_bytes(job.config),
        "kv_bytes": count.kv_bytes(job.config, job.length),
        **speed(job, cluster, tokens, micro_steps),
        "longest_length": longest(lambda length: fits(job, cluster, 1, length)),
    }


def speed(job: Job, cluster: Cluster, tokens: int, micro_steps: int) -> dict[str, Any]:
    """Communication goes on behind the computation, whichever is longer; then the optimiser."""
    parameters, (sharding, gpu) = count.parameters(job.config), (cluster.sharding, cluster.gpu)
    each = tokens / cluster.devices
    compute = each * seconds_per_token(job.config, job.length, cluster.rates, job.checkpointing)
    communication = shards.seconds(parameters, sharding, micro_steps, gpu) if gpu else 0.0
    optimiser = ADAM_BYTES * parameters / sharding.shards / gpu.bandwidth if gpu else 0.0
    step = max(compute, communication) + optimiser
    flops = train_flops(job.config, job.length)
    sent = shards.shard_bytes(parameters, sharding, micro_steps) + shards.replica_bytes(parameters, sharding)
    return {
        "bytes_communicated_per_step": sent,
        "compute_seconds": compute,
        "communication_seconds": communication,
        "optimiser_seconds": optimiser,
        "step_seconds": step,
        "tokens_per_second": tokens / step,
        "mfu": flops * tokens / step / (cluster.devices * cluster.peak),
        "steps": -(-job.tokens // tokens),
        "days": -(-job.tokens // tokens) * step / DAY,
    }


def sequences_of(job: Job, cluster: Cluster) -> int:
    """Of each device in a step."""
    sequences = job.batch_tokens // (job.length * cluster.devices)
    if not sequences:
        least = f"{cluster.devices} × {job.length} = {cluster.devices * job.length:,}"
        raise ValueError(f"--batch-tokens is {job.batch_tokens:,}, expected at least one sequence a device, {least}")
    return sequences


def micro_batch_of(job: Job, cluster: Cluster, sequences: int) -> int:
    """As asked for, or the largest that fits; 1 if none does, and then the plan says so."""
    if job.micro_batch is not None:
        return min(job.micro_batch, sequences)
    return largest(lambda n: fits(job, cluster, n, job.length), sequences) or 1


def memory_of(job: Job, cluster: Cluster, batch: int, length: int) -> Memory:
    return train_memory(job.config, Step(batch, length, cluster.precision, job.checkpointing), cluster.sharding)


def fits(job: Job, cluster: Cluster, batch: int, length: int) -> bool:
    return memory_of(job, cluster, batch, length).total <= USABLE * cluster.memory


def longest(fits: Callable[[int], bool]) -> int | None:
    """The longest sequence that fits, one at a time. None: none does."""
    return (largest(lambda n: fits(GRAIN * n), LONGEST // GRAIN) or 0) * GRAIN or None


def largest(fits: Callable[[int], bool], most: int) -> int | None:
    """The largest n from 1 to most that fits, by bisection; None if 1 does not."""
    if not fits(1):
        return None
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
