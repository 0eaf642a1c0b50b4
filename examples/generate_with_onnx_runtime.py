"""Generate text from a model in ONNX: numpy, tokenizers and onnxruntime, nothing of ours.

gdn train gdn-demo && gdn convert runs/gdn-demo exports/demo --to onnx
python examples/generate_with_onnx_runtime.py exports/demo "def main("
"""

import argparse
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("prompt")
parser.add_argument("--tokens", type=int, default=64)
args = parser.parse_args()

tokenizer = Tokenizer.from_file(str(args.folder / "tokenizer.json"))
model = onnxruntime.InferenceSession(args.folder / "model.onnx")
outputs = [x.name for x in model.get_outputs()]

types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}


def size(axis: int | str) -> int:
    """Before the first token: of one sequence, and of keys and values of no token."""
    return axis if isinstance(axis, int) else 1 if axis == "batch" else 0


inputs = [x for x in model.get_inputs() if x.name != "tokens"]
state = {x.name: np.zeros([size(axis) for axis in x.shape], types[x.type]) for x in inputs}

ids = tokenizer.encode(args.prompt).ids
read, start = ids, len(ids)
while len(ids) < start + args.tokens:
    results = dict(zip(outputs, model.run(outputs, {"tokens": np.array([read]), **state}), strict=True))
    read = [int(results.pop("logits")[0, -1].argmax())]
    ids += read
    state = {name.replace("present.", "past."): x for name, x in results.items()}
print(tokenizer.decode(ids))
