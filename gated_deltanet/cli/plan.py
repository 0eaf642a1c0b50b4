"""`gdn plan`: what a training run will cost, before anything is bought or begun."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from tyro.conf import Positional, arg

PAPER_BATCH = "0.5M"  # section 4


@dataclass(frozen=True)
class Plan:
    """Estimate what training a model takes: FLOPs, memory, communication, time, and the longest length that fits.

    Speed on GPUs follows the paper's Fig. 3 (1.3B models on one H100), each kind of work at the rate it reaches there;
    collectives reach 70 % of their links and go on behind the computation. Memory that autograd keeps is counted, not
    estimated. With --here the rates are shares of this machine's torch.mm, measured now, and --measure runs a step of
    one sequence beside the prediction.

    Example: gdn plan gdn-1.3b --gpus 64 --gpu h100 --tokens 100B --parallel hsdp:8x8
    """

    preset: Positional[Annotated[str, arg(metavar="PRESET")]]
    """Plan for this model, one that `gdn presets` lists."""
    gpus: int = 1
    """Train on so many GPUs, in nodes of eight (rtx4090: four)."""
    gpu: str = "h100"
    """Train on GPUs of this kind: h100, h200, b200, a100, l40s, rtx4090 or mi300x."""
    tokens: str = "100B"
    """Train on so many tokens in all; K, M, B and T are powers of ten."""
    length: str = "4K"
    """Train on sequences of so many tokens; K and M are powers of two."""
    batch_tokens: str = PAPER_BATCH
    """Take so many tokens a step, over all GPUs; K and M are powers of two."""
    micro_batch: Annotated[int | None, arg(metavar="INT")] = None
    """Process so many sequences at a time on a GPU; by default as many as fit."""
    parallel: str = "fsdp"
    """Divide the model among the GPUs. fsdp: one copy over all. ddp: one on each. hsdp:RxS: R copies on S each."""
    checkpointing: bool = False
    """Keep only the blocks' inputs for backward and run the blocks again."""
    here: bool = False
    """Plan for this machine instead of GPUs."""
    dtype: str = "float32"
    """Compute products on this machine in float32 or bfloat16 (autocast)."""
    measure: bool = False
    """Run a step of one sequence, too; only with --here."""
    json: bool = False
    """Print one JSON document instead of a table."""

    def run(self) -> None:
        from gated_deltanet.cli.output import print_json, print_table

        document = estimate(self)
        if self.json:
            return print_json(document)
        print_table(title(document), ["what", "how much"], lines(document), notes=notes(document))


def estimate(options: Plan) -> dict[str, Any]:
    from gated_deltanet.plan import plan
    from gated_deltanet.quantity import parse_count, parse_size

    if options.measure and not options.here:
        raise ValueError("--measure is for this machine, expected --here with it")
    length = parse_size("--length", options.length)
    names = ("micro_batch", "checkpointing", "gpus", "gpu", "parallel", "here", "dtype")
    found = plan(
        options.preset,
        tokens=parse_count("--tokens", options.tokens),
        length=length,
        batch_tokens=parse_size("--batch-tokens", options.batch_tokens),
        **{name: getattr(options, name) for name in names},
    )
    document = {"options": asdict(options), **found}
    if options.measure:
        document["measured"] = run_a_step(options, length, found["peak_flops"])
    return document


def run_a_step(options: Plan, length: int, peak_flops: float) -> dict[str, Any]:
    from gated_deltanet.bench.train import Cell, beside_plan

    return beside_plan(Cell(options.preset, length, 1), options.dtype, peak_flops, options.checkpointing)


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
