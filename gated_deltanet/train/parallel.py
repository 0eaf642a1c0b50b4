"""Several processes, on PyTorch's engine: DDP, FSDP2, HSDP. `torchrun` starts them; gloo joins CPUs, nccl GPUs."""

import gc
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore  # pyright: ignore  # which says that it is not exported
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from gated_deltanet.data.rows import Batch
from gated_deltanet.interop.folder import load_weights
from gated_deltanet.layers.decay import Decay
from gated_deltanet.models import CausalLM, ModelConfig

RUNS = count()  # that this process has had a part in, one after the other


class Place(NamedTuple):
    """Where a process computes."""

    device: torch.device
    rank: int = 0
    ranks: int = 1


class Objective(nn.Module):
    """What is minimised: a module of its own, so that DDP and FSDP can wrap it."""

    def __init__(self, model: CausalLM):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor, cu_seqlens: Tensor) -> Tensor:
        """The sum of the losses of all targets, in nats."""
        return self.model.loss(tokens, targets, cu_seqlens=cu_seqlens, reduction="sum")


@contextmanager
def processes() -> Iterator[Place]:
    """The place of this process among those that torchrun started, if it did."""
    if not dist.is_torchelastic_launched():
        yield Place(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        return
    store, rank, ranks = next(iter(rendezvous("env://")))
    store = PrefixStore(f"run {next(RUNS)}", store)  # or a fast rank would find the addresses of the run before
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # torchrun tells it in no other way
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=ranks, device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    yield Place(device, rank, ranks)
    gc.collect()  # gloo's threads abort the interpreter's exit while tensors are still referred to
    dist.barrier()
    dist.destroy_process_group()


def check(parallel: str) -> None:
    if parallel not in ("auto", "ddp", "fsdp") and not re.fullmatch(r"hsdp:[1-9]\d*x[1-9]\d*", parallel):
        raise ValueError(f"parallel is {parallel!r}, expected auto, ddp, fsdp or hsdp:RxS, such as hsdp:2x8")


def build(
    config: ModelConfig, init: Path | None, *, start: str, seed: int, parallel: str, dtype: torch.dtype, place: Place
) -> tuple[CausalLM, nn.Module]:
    """The model and its objective as every rank starts them: the same weights, drawn once from the seed or read.

    init: the folder of a model to read them from. start: how they start otherwise. Each rank has them whole, or with
    fsdp and hsdp its shard of them.
    """
    shards = place.ranks > 1 and parallel.startswith(("fsdp", "hsdp"))
    with torch.device("meta") if shards and place.rank else nullcontext():
        torch.manual_seed(seed)
        model = CausalLM(config, start)
    if init is not None and not (shards and place.rank):
        load_weights(model, init)
    if shards:
        return model, shard(Objective(model), mesh_of(parallel, place), dtype, place)
    objective = Objective(model.to(place.device))
    return model, DistributedDataParallel(objective) if place.ranks > 1 else objective


def shard(objective: Objective, mesh: DeviceMesh, dtype: torch.dtype, place: Place) -> nn.Module:
    """FSDP2, block by block, in place. Only rank 0's model has weights yet."""
    model = objective.model
    weights = model.state_dict() if place.rank == 0 else {}
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    decays: list[nn.Module] = [module for module in model.modules() if isinstance(module, Decay)]
    apart = fully_shard(decays, mesh=mesh) if decays else []  # half precision would change how far a layer remembers
    for block in model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    root = fully_shard(objective, mesh=mesh)
    model.to_empty(device=place.device)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)
    gather_with(objective, apart[:1], root)
    return objective


def gather_with(objective: nn.Module, decays: list[FSDPModule], root: FSDPModule) -> None:
    """Nobody calls a Decay, so no hook of its own gathers it. Where there is no backward, nothing else lets go of it,
    nor of the root."""
    objective.register_forward_pre_hook(lambda *_: [decay.unshard() for decay in decays] and None)

    def let_go(*_: Any) -> None:
        if not torch.is_grad_enabled():
            for module in (*decays, root):
                module.reshard()

    objective.register_forward_hook(let_go)


def mesh_of(parallel: str, place: Place) -> DeviceMesh:
    if parallel == "fsdp":
        return init_device_mesh(place.device.type, (place.ranks,), mesh_dim_names=("shard",))
    replicas, shards = map(int, parallel.removeprefix("hsdp:").split("x"))
    if replicas * shards != place.ranks:
        raise ValueError(f"parallel is {parallel!r}, expected {place.ranks} processes in all, as there are")
    return init_device_mesh(place.device.type, (replicas, shards), mesh_dim_names=("replicate", "shard"))


def to_device(batch: Batch, device: torch.device) -> Batch:
    return Batch(*(x.to(device, non_blocking=True) for x in batch))


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


def unsynchronised(objective: nn.Module) -> AbstractContextManager[Any]:
    """In which DDP only accumulates. FSDP shares out each gradient at once: it has no room for a whole one."""
    return objective.no_sync() if isinstance(objective, DistributedDataParallel) else nullcontext()


def total(x: Tensor, place: Place) -> Tensor:
    """The sum over all ranks."""
    if place.ranks > 1:
        dist.all_reduce(x)
    return x


def barrier(place: Place) -> None:
    if place.ranks > 1:
        dist.barrier()


def whole(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def whole_model(model: CausalLM, place: Place) -> CausalLM | None:
    """The model with all its weights, on rank 0; the model itself where it is not sharded. All ranks must ask."""
    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return model if place.rank == 0 else None
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if place.rank:
        return None
    with torch.device("meta"):
        gathered = CausalLM(model.config)
    gathered.load_state_dict(weights, assign=True)
    return gathered
