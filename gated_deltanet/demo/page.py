"""The demo's report: one HTML file that needs nothing else."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --soft: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; }
td { padding: .3rem 1rem .3rem 0; text-align: left; border-bottom: 1px solid var(--soft); }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--soft); padding: 1rem; border-radius: .5rem; overflow-x: auto; white-space: pre-wrap; }
img { max-width: 100%; background: white; border-radius: .5rem; }
"""


def page(
    facts: Mapping[str, str],
    bits: Mapping[str, float],
    sample: tuple[str, str],
    pictures: Mapping[str, bytes],
    commands: Sequence[str],
) -> str:
    """facts: by name. bits: per byte, by who. sample: prompt and completion. pictures: PNGs by title."""
    body = [
        "<h1>A Gated DeltaNet, trained on this machine</h1>",
        "<p>on the Python standard library of its own interpreter.</p>",
        table(facts),
        "<h2>Bits per byte of text nobody had shown it</h2>",
        "<p>Fewer is better: the size of the text, compressed by whoever predicts it.</p>",
        table({who: f"{x:.3f}" for who, x in bits.items()}, number=True),
        "<h2>What it writes</h2>",
        f"<pre><b>{escape(sample[0])}</b>{escape(sample[1])}</pre>",
        *(picture(title, png) for title, png in pictures.items()),
        "<h2>Try next</h2>",
        f"<pre>{escape(chr(10).join(commands))}</pre>",
    ]
    head = f'<meta charset="utf-8"><title>gated-deltanet: demo</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def table(rows: Mapping[str, str], number: bool = False) -> str:
    kind = ' class="number"' if number else ""
    cells = (f"<tr><td>{escape(name)}</td><td{kind}>{escape(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{''.join(cells)}</table>"


def picture(title: str, png: bytes) -> str:
    data = b64encode(png).decode()
    return f'<h2>{escape(title)}</h2><img alt="{escape(title)}" src="data:image/png;base64,{data}">'
