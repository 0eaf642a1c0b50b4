"""`gdn plan`: what a training run will cost, before anything is bought or begun."""

from dataclasses import asdict, dataclass
from typing import Any

from tyro.conf import Positional

PAPER_BATCH = "0.5M"  # section 4


@dataclass(frozen=True)
class Plan:
    """Reckon what training a model takes: FLOPs, memory, communication, time, and the longest length that fits.

    Speed on GPUs follows the paper's Fig. 3 (1.3B models on one H100), each kind of work at the rate it reaches there;
    collectives reach 70 % of their links and go on behind the computation. Memory that autograd keeps is counted, not
    estimated. With --here the rates are shares of this machine's torch.mm, measured now, and --measure runs a step of
    one sequence beside the prediction.

    Example: gdn plan gdn-1.3b --gpus 64 --gpu h100 --tokens 100B --parallel hsdp:8x8
    """

    preset: Positional[str]
    """A name that `gdn presets` lists."""
    gpus: int = 1
    """How many, in nodes of eight (rtx4090: four)."""
    gpu: str = "h100"
    """h100, h200, b200, a100, l40s, rtx4090 or mi300x."""
    tokens: str = "100B"
    """To train on, in all; K, M, B and T are powers of ten."""
    length: str = "4K"
    """Of a sequence; K and M are powers of two."""
    batch_tokens: str = PAPER_BATCH
    """Of a step, over all GPUs; K and M are powers of two."""
    micro_batch: int | None = None
    """Sequences at a time on a GPU; by default as many as fit."""
    parallel: str = "fsdp"
    """fsdp: one copy of the model over all GPUs. ddp: one on each. hsdp:RxS: R copies on S each."""
    checkpointing: bool = False
    """Keep only the blocks' inputs for backward and run the blocks again."""
    here: bool = False
    """Plan for this machine instead of GPUs."""
    dtype: str = "float32"
    """Of products on this machine: float32 or bfloat16 (autocast)."""
    measure: bool = False
    """With --here: run a step of one sequence, too."""
    json: bool = False
    """Print one JSON document instead of a table."""

    def run(self) -> None:
        from gated_deltanet.cli.report import print_json, print_table

        document = reckon(self)
        if self.json:
            return print_json(document)
        print_table(title(document), ["what", "how much"], lines(document), notes=notes(document))


def reckon(options: Plan) -> dict[str, Any]:
    from gated_deltanet.models import get_preset
    from gated_deltanet.plan.plan import Job, plan
    from gated_deltanet.quantity import parse_count, parse_size

    check(options)
    job = Job(
        get_preset(options.preset),
        parse_count("--tokens", options.tokens),
        parse_size("--length", options.length),
        parse_size("--batch-tokens", options.batch_tokens),
        options.checkpointing,
        options.micro_batch,
    )
    cluster = this_machine(options.dtype) if options.here else gpus(options)
    document = {"options": asdict(options), "length": job.length, "peak_flops": cluster.peak, **plan(job, cluster)}
    return document | ({"measured": run_a_step(job.config, job.length, options, cluster)} if options.measure else {})


def check(options: Plan) -> None:
    for name in ("gpus", "micro_batch"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}, expected at least 1")
    if options.dtype not in ("float32", "bfloat16"):
        raise ValueError(f"--dtype is {options.dtype!r}, expected float32 or bfloat16")
    if options.measure and not options.here:
        raise ValueError("--measure is for this machine, expected --here with it")


def gpus(options: Plan) -> Any:
    from gated_deltanet.plan.gpus import get_gpu
    from gated_deltanet.plan.plan import of_gpus
    from gated_deltanet.plan.sharding import parse_sharding

    return of_gpus(get_gpu(options.gpu), options.gpus, parse_sharding(options.parallel, options.gpus))


def this_machine(dtype: str) -> Any:
    import torch

    from gated_deltanet.bench import machine, matmul, memory
    from gated_deltanet.plan.plan import of_this_machine

    available = memory.available_bytes() or machine.memory_bytes()
    if available is None:
        raise ValueError("this system does not tell how much memory it has, and --here needs to know")
    return of_this_machine(matmul.measure(getattr(torch, dtype)), available, dtype)


def run_a_step(config: Any, length: int, options: Plan, cluster: Any) -> dict[str, Any]:
    """What was predicted for one sequence and what it took."""
    from gated_deltanet.bench.train import Cell, measure
    from gated_deltanet.plan.memory import Step, train_memory
    from gated_deltanet.plan.speed import seconds_per_token

    (row,) = measure([Cell(options.preset, length, 1)], options.dtype, checkpointing=options.checkpointing)
    predicted = 1 / seconds_per_token(config, length, cluster.rates, options.checkpointing)
    step = Step(1, length, options.dtype, options.checkpointing)
    return {
        "predicted_tokens_per_second": predicted,
        "tokens_per_second": row["tokens_per_second"],
        "predicted_bytes": train_memory(config, step, cluster.sharding).total,
        "bytes": row["peak_bytes"],
    }


def title(document: dict[str, Any]) -> str:
    options = document["options"]
    if options["here"]:
        return f"{options['preset']} on this machine, {options['dtype']}"
    return f"{options['preset']} on {options['gpus']} × {options['gpu']}, {options['parallel']}"


def lines(d: dict[str, Any]) -> list[tuple[str, str]]:
    from gated_deltanet.quantity import show_count

    memory = d["memory"]
    parts = ", ".join(f"{name} {gib(memory[name])}" for name in list(memory)[:-2] if memory[name])
    found = [
        ("parameters", show_count(d["parameters"])),
        ("training FLOPs", f"{show_count(d['flops_per_token'])} a token, {d['flops']:.2e} in all"),
        ("a step", f"{d['tokens_per_step']:,} tokens: {d['devices']} × {batches(d)} of {d['length']:,}"),
        ("memory", f"{gib(memory['total'])} of {gib(memory['usable'])} GiB" + ("" if d["fits"] else ": does NOT fit")),
        ("", parts),
        (
            "to generate",
            f"state {mib(d['state_bytes'])} MiB a sequence, KV {mib(d['kv_bytes'])} MiB after {d['length']:,}",
        ),
        ("longest length", f"{d['longest_length']:,} tokens" if d["longest_length"] else "none fits"),
        ("time of a step", times(d)),
        ("speed", f"{show_count(d['tokens_per_second'])} tokens/s, MFU {d['mfu']:.0%}"),
        ("in all", f"{d['steps']:,} steps, {duration(d['days'])}"),
    ]
    if d["bytes_communicated_per_step"]:
        found.insert(6, ("communication", f"{gib(d['bytes_communicated_per_step'])} GiB a step into each GPU"))
    return found + measured(d.get("measured"))


def batches(d: dict[str, Any]) -> str:
    sequences = d["sequences_per_device"]
    return f"{sequences}" if d["micro_steps"] == 1 else f"{sequences} (at most {d['micro_batch']} at a time)"


def times(d: dict[str, Any]) -> str:
    parts = {name: d[f"{name}_seconds"] for name in ("compute", "communication", "optimiser")}
    told = ", ".join(f"{name} {value:.3g}" for name, value in parts.items() if value)
    return f"{d['step_seconds']:.3g} s ({told})"


def measured(row: dict[str, Any] | None) -> list[tuple[str, str]]:
    if row is None:
        return []
    speed, predicted = row["tokens_per_second"], row["predicted_tokens_per_second"]
    found = [("measured", f"{speed:,.0f} tokens/s, predicted {predicted:,.0f} ({speed / predicted:.2f} ×)")]
    if row["bytes"]:
        ratio = row["bytes"] / row["predicted_bytes"]
        found.append(("", f"{gib(row['bytes'])} GiB, predicted {gib(row['predicted_bytes'])} ({ratio:.2f} ×)"))
    return found


def notes(d: dict[str, Any]) -> list[str]:
    if d["options"]["here"]:
        return [f"torch.mm reaches {d['peak_flops'] / 1e9:.0f} GFLOP/s in {d['options']['dtype']} here, now."]
    return [
        f"Peak {d['peak_flops'] / 1e12:.0f} TFLOP/s in bfloat16. Assumed, from Fig. 3: products reach 51 % of it, "
        "attention 22 %, recurrences what memory bandwidth allows; collectives 70 % of their links.",
    ]


def gib(size: float) -> str:
    return f"{size / 2**30:.3g}"


def mib(size: float) -> str:
    return f"{size / 2**20:,.3g}"


def duration(days: float) -> str:
    return (
        f"{days:.1f} days"
        if days >= 2
        else f"{days * 24:.1f} hours"
        if days * 24 >= 2
        else f"{days * 1440:.1f} minutes"
    )
