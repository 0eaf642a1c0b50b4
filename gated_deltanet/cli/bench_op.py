"""`gdn bench op`: its options, and its tables."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg


@dataclass(frozen=True)
class Op:
    """Measure how fast the gated delta rule, attention and the selective scan are: each backend, beside others' code.

    All contestants of a case take turns, and each is judged by its best turn. The yardstick, torch.mm of float32
    matrices of 2048², takes turns with them. Peers: the torch functions of transformers; ONNX Runtime's operator
    (packages onnxruntime and onnx); on a GPU flash-linear-attention.

    Example: gdn bench op --lengths 1 2048 --dtypes float32 --out op.json
    """

    lengths: Annotated[tuple[int, ...] | None, arg(metavar="[INT ...]")] = None
    """Measure sequences of so many tokens; 1 is a decoding step. By default 1 64 512 2048 4096 16384."""
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    """Measure q, k and v of these dtypes."""
    heads: int = 16
    """Give q, k and v so many heads."""
    d_k: int = 128
    """Set the width of a key."""
    d_v: int = 128
    """Set the width of a value."""
    threads: Annotated[int | None, arg(metavar="INT")] = None
    """Use so many threads; by default as many as torch does."""
    backends: Annotated[tuple[str, ...] | None, arg(metavar="[STR ...]")] = None
    """Measure these backends; by default all, but reference and parallel for short sequences only."""
    peers: Annotated[tuple[str, ...] | None, arg(metavar="[STR ...]")] = None
    """Measure these peers; by default all that are installed. Nothing after --peers leaves them out."""
    device: str = "cpu"
    """Measure on the processor, or on a GPU: cuda (ROCm, too), where flash-linear-attention is a peer."""
    tables: Annotated[tuple[str, ...] | None, arg(metavar="[STR ...]")] = None
    """Make these tables; by default all, on a GPU lengths, shapes and growth. lengths: the sizes above. shapes: short
    sequences, small and odd heads. threads: one against all, 2048 tokens. growth: 16384 tokens against 2048.
    attention, selective_scan: these ops of other mixers."""
    seconds: float = 1.0
    """Measure each contestant of each case for so many seconds, at least."""
    quick: bool = False
    """Take shorter sequences and less time, to see that it works."""
    keep_memory: bool = False
    """Keep freed memory in the process, so that page faults of large results do not count (with glibc; in the
    table growth they never do)."""
    json: bool = False
    """Print one JSON document instead of tables."""
    out: Annotated[Path | None, arg(metavar="PATH")] = None
    """Write the JSON document to this file."""

    def run(self) -> None:
        from gated_deltanet.bench import op
        from gated_deltanet.cli.output import check_out, print_json, tracked, write_document

        if self.out:
            check_out(self.out, ".json")
        options = {name: value for name, value in asdict(self).items() if name not in ("json", "out")}
        document = op(**options, track=partial(tracked, what="measuring"))
        if self.out:
            write_document(self.out, document)
        if self.json:
            return print_json(document)
        print_tables(document)


TITLES = {
    "lengths": "Gated delta rule",
    "shapes": "Short sequences, small and odd heads",
    "threads": "One thread against all",
    "growth": "A long sequence against a shorter one",
    "attention": "Causal softmax attention",
    "selective_scan": "Mamba's selective scan",
}
HEADS = {"transformers": "× HF", "onnxruntime": "× ONNX", "fla": "× FLA"}
NOTES = [
    "µs: per token and head. GFLOP/s: useful ones, 6 d_k d_v per token and head forward, 18 with backward.",
    "sgemm: share of what torch.mm of float32 reaches. MiB: most memory held during the call, results included.",
    "step: one token decoded; step_ in place. cost: of a token, against the shorter sequence, without page faults.",
    "Attention: useful FLOPs are 4 d for each pair of query and key, 14 d with backward. × sdpa: times faster than our",
    "form by torch's kernel. torch, mask: that kernel with a mask over all pairs; flex: flex attention.",
    "Its step: one token of 16 sequences; reading: share of the speed at which torch sums the bytes of their cache.",
    "Scan: µs per token.",
]


def print_tables(document: dict[str, Any]) -> None:
    from gated_deltanet.cli.output import print_table

    measured = [row for row in document["rows"] if "left_out" not in row]
    for title in dict.fromkeys(map(title_of, measured)):
        rows = [row for row in measured if title_of(row) == title]
        peers = [peer for peer in document["peers"] if any(peer in row["times_faster_than"] for row in rows)]
        print_table(title, list(cells(rows[0], peers)), [list(cells(row, peers).values()) for row in rows])
    for note in notes(document):
        print(note)


def title_of(row: dict[str, Any]) -> str:
    if "op" in row:
        return f"{TITLES[row['table']]}\n{row['what']}, {row['dtype']}, threads: {row['threads']}"
    sizes = [] if row["table"] == "shapes" else [f"{row['H']} heads of {row['d_k']} × {row['d_v']}"]
    threads = [] if row["table"] == "threads" else [f"threads: {row['threads']}"]
    return "\n".join([TITLES[row["table"]], f"{row['what']}, {row['dtype']}", ", ".join(sizes + threads)]).strip()


def cells(row: dict[str, Any], peers: list[str]) -> dict[str, str]:
    """By column."""
    if "op" in row:
        return op_cells(row)
    table, peak = row["table"], row["peak_bytes"]
    found = {"L": str(row["L"])}
    if table == "shapes":
        found["heads"] = f"{row['H']}×{row['d_k']}×{row['d_v']}"
    if table == "threads":
        found["threads"] = str(row["threads"])
    found |= {"who": row["who"], "µs": decimals(row["us"]), "GFLOP/s": f"{row['gflops']:.1f}"}
    found |= {"sgemm": f"{row['share_of_sgemm']:.2f}", "MiB": "" if peak is None else f"{peak / 2**20:.1f}"}
    if table in ("threads", "growth"):
        return found | {"speed-up" if table == "threads" else "cost": decimals(row.get("speedup", row.get("growth")))}
    return found | {HEADS[peer]: decimals(row["times_faster_than"].get(peer)) for peer in peers}


def op_cells(row: dict[str, Any]) -> dict[str, str]:
    """Of attention or the selective scan."""
    part = (
        f"window {row['window']}" if row["window"] else f"{row['documents']} documents" if row["documents"] > 1 else ""
    )
    found = {
        "L": str(row["L"]),
        "heads": f"{row['H']}×{row['d']}",
        "": part,
        "who": row["who"],
        "µs": decimals(row["us"]),
    }
    faster = row["times_faster_than"]
    if row["what"] == "step":
        return found | {"reading": decimals(row.get("share_of_reading")), "× sdpa": decimals(faster.get("sdpa"))}
    if row["op"] == "selective_scan":
        del found[""]
        return found | {"× chunkwise": decimals(faster.get("chunkwise"))}
    return found | {"sgemm": f"{row['share_of_sgemm']:.2f}", "× sdpa": decimals(faster.get("sdpa"))}


def decimals(x: float | None) -> str:
    """As many as tell something."""
    return "" if x is None else f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:.0f}"


def measured_on(document: dict[str, Any]) -> str:
    machine, device = document["machine"], document["settings"]["device"]
    return machine["cpu"]["model"] if device == "cpu" else ", ".join(machine["torch"]["cuda"])


def notes(document: dict[str, Any]) -> list[str]:
    left_out = (row for row in document["rows"] if "left_out" in row)
    busy = document["load"]
    return [
        f"{measured_on(document)}, {document['date']}.",
        *NOTES,
        *(f"{HEADS[peer]}: times faster than {peer} {version}." for peer, version in document["peers"].items()),
        *(f"Left out: {r['who']}, {r['what']}, {r['dtype']}, L = {r['L']}: {r['left_out']}." for r in left_out),
        *(
            [f"Other programs were running (load {busy:.1f}): the figures may be far off."]
            if busy and busy > 0.5
            else []
        ),
    ]
