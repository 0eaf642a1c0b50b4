"""One model in every format of weights: reading, writing, products of few rows, beside what memory and GEMM allow."""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gated_deltanet.layers import Attention, GatedDeltaNet
from gated_deltanet.matmul import matmul_flops
from gated_deltanet.models import CausalLM, ModelConfig
from gated_deltanet.models.generate import Steps
from gated_deltanet.models.weights import pack_weights, weight_bytes
from gated_deltanet.ops import native
from gated_deltanet.ops.linear import FORMATS, linear, pack
from gated_deltanet.ops.linear.packing import QUANTISED

from . import llama, machine, memory
from .timing import race, turns
from .transformers import decode as hf_decode
from .transformers import model_of as hf_model
from .transformers import prefill as hf_prefill

DENSE = "dense"  # float32 as it is trained: torch's own products
PEERS = ("transformers float32", "transformers bfloat16")
LLAMAS = ("llama.cpp float32", "llama.cpp bfloat16", "llama.cpp int8")
WHO = (DENSE, *FORMATS, *PEERS, *LLAMAS)
PREFILL = (128, 512, 4096)
BATCHES = (1, 4, 16)
CONTEXT, STEPS = 64, 16  # tokens read before, and written in a turn
LARGE = 2**18  # bytes: what is smaller does not count when memory is read
SHAPE = (16384, 4096)  # of the product of 8 rows: 256 MiB in float32
ROWS = 8

Row = dict[str, Any]
Work = tuple[str, int, int]  # "prefill" or "decode", tokens read, sequences


def weights(
    who: Sequence[str] = WHO,
    *,
    prefill: Sequence[int] = PREFILL,
    batches: Sequence[int] = BATCHES,
    rounds: int = 3,
    minutes: float = 30,
    layers: int = 12,
    track: Callable[[Sequence], Iterable[Any]] = iter,
) -> dict[str, Any]:
    """A random model of Qwen3.5's widths (257 M parameters) with weights of each format: a document of JSON values.

    who: of WHO; transformers and llama.cpp with a model of that shape beside it, if they are installed. prefill:
    lengths that are read. batches: sequences that are continued at once, of llama.cpp one. rounds: turns of each, of
    which none but the first begins that would end after `minutes`. layers: so many of twelve. track: wraps the turns
    to show progress.
    """
    if unknown := [name for name in who if name not in WHO]:
        raise ValueError(f"--who: {unknown[0]!r}, expected some of {', '.join(WHO)}")
    for option, values in (("prefill", prefill), ("batches", batches), ("rounds", [rounds]), ("layers", [layers])):
        if small := [value for value in values if value < 1]:
            raise ValueError(f"--{option}: {small[0]}, expected at least 1")
    who = [name for name in who if name not in (*PEERS, *LLAMAS) or find_spec("transformers") is not None]
    who = [name for name in who if name not in LLAMAS or llama.installed()]
    settings = {"who": who, "prefill": list(prefill), "batches": list(batches), "rounds": rounds, "layers": layers}
    document = machine.record(settings)
    models = {name: model_of(name, layers, max(CONTEXT, *prefill, 0) + STEPS) for name in who}
    who = [name for name, model in models.items() if model is not None]  # a llama.cpp that does not know the model
    work: list[Work] = [("prefill", L, 1) for L in prefill] + [("decode", CONTEXT, B) for B in batches]
    times: dict[Any, list[tuple[float, float | None]]] = {}  # of each turn: seconds, and bytes a second just before
    held: dict[Any, int | None] = {}
    tasks = [(name, job) for job in work for name in who if name not in LLAMAS or job[2] == 1]
    for task in turns(tasks, rounds, 60 * minutes, track):
        name, job = task
        if task not in held:  # it warms up, too
            held[task] = memory.peak_bytes(partial(run, models[name], job))
        read = read_bandwidth(models[name]) if name not in LLAMAS else None
        times.setdefault(task, []).append((run(models[name], job), read))
    reads = [read for turns_of in times.values() for _, read in turns_of if read is not None]
    limits = {"read_bytes_per_second": median(reads), "matmul_flops": matmul_flops(torch.float32)}
    rows = [row(models, task, times, held[task], limits["matmul_flops"]) for task in times]
    return {
        **document,
        **limits,
        "rows": rows,
        "products": products([name for name in who if name == DENSE or name in FORMATS]),
    }


def model_of(name: str, layers: int, context: int) -> Any:
    """context: the tokens that llama.cpp makes room for."""
    if name in LLAMAS:
        return llama.load(hf_model("qwen3.5", "float32", None if layers == 12 else layers), name.split()[1], context)
    if name in PEERS:
        return hf_model("qwen3.5", name.split()[1], None if layers == 12 else layers)
    gdn = GatedDeltaNet(16, 128, 128)
    full = Attention(8, 256, n_kv_heads=2, rope_theta=1e7, rope_dims=64, qk_norm="head", gate=True)
    torch.manual_seed(0)
    model = CausalLM(ModelConfig(1024, layers, (gdn, gdn, gdn, full)[-layers:], 3584, 8192)).eval()
    return model if name == DENSE else pack_weights(model, name)


def run(model: Any, job: Work) -> float:
    """Seconds."""
    kind, L, B = job
    tokens = torch.randint(8192, (B, L), generator=torch.Generator().manual_seed(0))
    if not isinstance(model, CausalLM | nn.Module):
        ids = tokens[0].tolist()
        return llama.prefill(model, ids) if kind == "prefill" else llama.decode(model, ids, STEPS)
    if not isinstance(model, CausalLM):
        return (hf_prefill if kind == "prefill" else hf_decode)(model, tokens)
    with torch.inference_mode():
        return read_all(model, tokens)[0] if kind == "prefill" else write(model, tokens)


def read_all(model: CausalLM, tokens: Tensor) -> tuple[float, Tensor, Any]:
    start = perf_counter()
    x, state = model.hidden(tokens)
    logits = model.logits(x[:, -1])
    return perf_counter() - start, logits, state


def write(model: CausalLM, tokens: Tensor) -> float:
    """Of STEPS tokens for each sequence, each the most probable one, after the others are read."""
    _, logits, state = read_all(model, tokens)
    steps = Steps(model, state)
    start = perf_counter()
    for _ in range(STEPS):
        logits = model.logits(steps.hidden(logits.argmax(-1)))
    return perf_counter() - start


def row(models: dict[str, Any], task: Any, times: dict[Any, Any], held: int | None, flops: float) -> Row:
    """Speeds are of the best turn. The share of what memory allows is the median of the turns', each measured with how
    fast memory could be read just then: on a shared machine that changes by the minute."""
    name, (kind, L, B) = task
    model, tokens = models[name], B * (L if kind == "prefill" else STEPS)
    parameters = sum(x.numel() for x in models[DENSE].parameters()) if DENSE in models else None
    size = bytes_of(model)
    best = {of: min(seconds for seconds, _ in turns_of) for of, turns_of in times.items()}
    shares = [size / read * STEPS / seconds for seconds, read in times[task] if size is not None]
    ceiling = flops / (2 * parameters) if kind == "prefill" and parameters is not None else None
    return {
        "who": name,
        "work": f"prefill {L}" if kind == "prefill" else f"decode, batch {B}",
        "seconds": best[task],
        "tokens_per_second": tokens / best[task],
        "times_dense": best[DENSE, task[1]] / best[task] if (DENSE, task[1]) in best else None,
        "share_of_memory_floor": median(shares) if kind == "decode" and shares else None,
        "share_of_gemm": tokens / best[task] / ceiling if ceiling else None,
        "weight_bytes": size,
        "peak_bytes": held,
    }


def bytes_of(model: Any) -> int | None:
    """Of what a token reads; None of llama.cpp's."""
    if isinstance(model, CausalLM):
        return weight_bytes(model)
    return sum(x.nbytes for x in model.parameters()) if isinstance(model, nn.Module) else None


def read_bandwidth(model: Any) -> float:
    """Bytes a second at which the model's own weights can be read: pages of one machine may differ by a factor of two.

    Without the native library, those of a sum.
    """
    tensors = [x for x in (*model.parameters(), *model.buffers()) if x.nbytes >= LARGE]
    return read_rate([x.detach() for x in tensors])


def read_rate(tensors: Sequence[Tensor]) -> float:
    library, times = native.loaded(), []
    size = sum(x.nbytes // LARGE * LARGE for x in tensors)
    data = (ctypes.c_void_p * len(tensors))(*(x.data_ptr() for x in tensors))
    sizes = (ctypes.c_int64 * len(tensors))(*(x.nbytes for x in tensors))
    for _ in range(3):
        start = perf_counter()
        if library is None:
            sum(float(x.view(torch.uint8).view(torch.float32).sum()) for x in tensors)
        else:
            library.gdn_read(data, sizes, len(tensors), torch.get_num_threads())
        times.append(perf_counter() - start)
    return size / min(times)


def products(who: Sequence[str]) -> list[Row]:
    """Of 8 rows, with weights larger than a cache, beside torch's in float32. The limit is to read the weights, and of
    floats what torch.mm makes of them."""
    x, W = torch.randn(ROWS, SHAPE[1]), torch.randn(SHAPE)
    packed = {name: pack(W, name) for name in who if name != DENSE}
    calls: dict[str, Callable[[], object]] = {name: partial(linear, x, weight) for name, weight in packed.items()}
    with torch.inference_mode():
        seconds = race({DENSE: partial(F.linear, x, W), **calls}, 0.5)
    flops, peak = 2 * ROWS * W.numel(), matmul_flops(torch.float32)
    rates = {DENSE: read_rate([W]), **{name: read_rate([weight.data]) for name, weight in packed.items()}}
    sizes = {DENSE: W.nbytes, **{name: weight.data.nbytes for name, weight in packed.items()}}
    return [
        {
            "who": name,
            "seconds": t,
            "flops_per_second": flops / t,
            "times_dense": seconds[DENSE] / t,
            "share_of_limit": max(sizes[name] / rates[name], 0 if name in QUANTISED else flops / peak) / t,
        }
        for name, t in seconds.items()
    ]
