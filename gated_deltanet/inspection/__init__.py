"""What a model's memory does on a text: its gates, how far it reaches, its size and rank, and where the model erred.

    from gated_deltanet.inspection import inspect, page
    document = inspect(model, "def f(x): return x", tokenizer)
    Path("page.html").write_text(page(document))

`gated_deltanet.inspection.figure.draw(document, file)` draws it.
"""

from .document import inspect
from .page import page

__all__ = ["inspect", "page"]
