"""The page of `gdn inspect`: one file that needs nothing else, made of page.html, page.css and page.js."""

import base64
import json
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
STEPS = 2**16 - 1


def page(document: dict[str, Any]) -> str:
    """HTML of `inspect`. Whatever comes from outside is in the title, escaped, or is data, never markup."""
    data = json.dumps(
        document | {"layers": [packed_layer(layer) for layer in document["layers"]]}, separators=(",", ":")
    )
    parts = {
        "TITLE": escape(f"{document['checkpoint']}: what its memory does"),
        "STYLE": (FOLDER / "page.css").read_text(encoding="utf-8"),
        "SCRIPT": (FOLDER / "page.js").read_text(encoding="utf-8"),
        "DATA": data.replace("<", "\\u003c"),  # no "</script>", no "<!--"; JSON reads the same
    }
    html, *rest = (FOLDER / "page.html").read_text(encoding="utf-8").split("{{")
    for part in rest:  # one pass: what was put in is not looked at again
        name, _, after = part.partition("}}")
        html += parts[name] + after
    return html


def packed_layer(layer: dict[str, Any]) -> dict[str, Any]:
    return layer | {name: packed(layer[name]) for name in ("alpha", "beta", "memory") if layer[name] is not None}


def packed(rows: list[list[float]]) -> dict[str, Any]:
    """Numbers by head and token, at a third of their digits: 16 bits each, between their least and greatest."""
    x = np.asarray(rows)
    least, most = float(x.min()), float(x.max())
    steps = np.round((x - least) * (STEPS / (most - least) if most > least else 0)).astype("<u2")
    return {"heads": len(rows), "least": least, "most": most, "steps": base64.b64encode(steps.tobytes()).decode()}
