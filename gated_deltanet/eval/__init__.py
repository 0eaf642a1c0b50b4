"""Evaluation: the paper's benchmarks on any model, from files or the Hugging Face hub.

    from gated_deltanet import eval
    result = eval.needle(eval.open("runs/tiny"), lengths=(1024, 2048), limit=100)
    print(result)                       # also result.document, result.as_json(), result.save("results/tiny")

Each suite is a function of a model, or a model and its tokenizer, and says in its docstring which data it takes. limit
is everywhere the number of questions (or documents, or needles) that are asked of each set (corpus, length).
`commonsense` and `longbench` need lm-evaluation-harness: `pip install 'gated-deltanet[eval]'`.
"""

from gated_deltanet.result import Result

from .checkpoint import as_model
from .checkpoint import open_model as open
from .commonsense import commonsense
from .extrapolation import extrapolation
from .longbench import longbench
from .model import Model
from .needle import needle
from .recall import recall

# Functions that have their module's name. Since all modules are imported above, no later import binds the module.
__all__ = [
    "Model",
    "Result",
    "as_model",
    "commonsense",
    "extrapolation",
    "longbench",
    "needle",
    "open",
    "recall",
]
