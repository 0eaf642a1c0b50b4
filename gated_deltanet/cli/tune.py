"""`gdn tune`: search for faster tiles on this machine's GPU."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from tyro.conf import arg


@dataclass(frozen=True)
class Tune:
    """Search on this machine's GPU for faster tiles of the gated delta rule's kernels, and keep them in a file.

    The kernels need no tuning: their tiles are fixed, with the reason beside each. This tries others for one size of
    heads, some seventy of them, each compiled first, and writes the fastest to ~/.cache/gated-deltanet/tiles.json,
    which is used from then on (gdn doctor tells); delete it to have the fixed ones back. Results differ by roundings.

    Example: gdn tune --d-k 128 --d-v 128 --dtype bfloat16
    """

    d_k: int = 128
    """Set the width of a key."""
    d_v: int = 128
    """Set the width of a value."""
    heads: int = 16
    """Time a call with so many heads."""
    length: int = 8192
    """Time a call on so many tokens."""
    dtype: str = "bfloat16"
    """Tune for q, k and v of this dtype."""
    seconds: float = 0.2
    """Time each trial for so many seconds, at least."""
    out: Annotated[Path | None, arg(metavar="PATH")] = None
    """Write to this file instead, which is not used."""
    json: bool = False
    """Print the JSON document instead of a sentence."""

    def run(self) -> None:
        from gated_deltanet.bench.tune import tune
        from gated_deltanet.cli.output import print_json, tracked

        options = {name: value for name, value in asdict(self).items() if name != "json"}
        document = tune(**options, track=partial(tracked, what="tuning"))
        if self.json:
            return print_json(document)
        for name, measured in document["measured"].items():
            times = f"{measured['fixed_ms']:.3f} ms with the fixed tiles, {measured['tuned_ms']:.3f} ms with the tuned"
            print(f"{name}, {measured['gpu']}: {times}; {document['tried']} tried. Written to {document['file']}")
