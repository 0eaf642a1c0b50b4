"""Measurements on this machine, now: speed, memory and accuracy, with the machine described beside them.

    from gated_deltanet import bench
    bench.op(lengths=(1, 2048), dtypes=("float32",))    # the gated delta rule's backends and peers
    bench.train(["gdn", "transformer"], size="tiny")    # the paper's Fig. 3
    bench.decode(["gdn", "transformer"], size="tiny")   # reading and writing against the context
    bench.weights()                                     # a model with weights of every format
    bench.transformers(["qwen3.5"])                     # transformers' own models, stock and by our ops
    bench.accuracy()                                    # every op and form against float64

Each returns a document of plain JSON values, the one that `gdn bench` prints with --json.
"""

from .accuracy import accuracy
from .decode import decode
from .op import op
from .train import profile, train
from .transformers import transformers
from .weights import weights

__all__ = ["accuracy", "decode", "op", "profile", "train", "transformers", "weights"]
