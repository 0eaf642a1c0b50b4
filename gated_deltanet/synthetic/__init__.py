"""Small tasks that small models can tell apart, trained and scored in minutes on a CPU.

    from gated_deltanet.synthetic import synthetic
    print(synthetic(["gdn", "mamba2"]))

Recall (`mqar`, `copying`, `recall`) compares architectures; state tracking (`groups`) compares transitions of Gated
DeltaNet: how many Householder steps a token, and whether they may reflect (β up to 2). `tasks` is the table of them,
`models` what is trained, `train` how, `suite` runs all of it and makes the table, `figure` draws it.
"""

from gated_deltanet.result import Result

from .suite import synthetic
from .tasks import TASKS

__all__ = ["TASKS", "Result", "synthetic"]
