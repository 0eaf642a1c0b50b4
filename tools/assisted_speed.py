"""How much sooner transformers' Qwen3.5 writes with look-up: tools/assisted_speed.py --code FILE … --prose FILE …

The model of `gdn bench transformers` has random weights and would write noise, so each token is put into its mouth: it
writes the text of the file, as a model would that knows it by heart. What a look-up in the prompt guesses then depends
on the text alone, and a pass costs what it costs. Decoding without look-up takes turns with it, both accelerated.
"""

import json
from argparse import ArgumentParser
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from gated_deltanet import accelerate_transformers, demo
from gated_deltanet.bench.transformers import DTYPES, model_of
from gated_deltanet.data import tokenizer


class Says(LogitsProcessor):
    """The next token of this text is by far the most probable one."""

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        at = min(input_ids.shape[1], len(self.text) - 1)  # guesses may go on behind its end
        scores[:, self.text[at]] = torch.finfo(scores.dtype).max
        return scores


def seconds(model: Any, text: Tensor, read: int, **assisted: Any) -> float:
    """Of writing all of the text behind the first `read` tokens and one more."""
    fixed = {"do_sample": False, "logits_processor": LogitsProcessorList([Says(text)])}

    def write(n: int) -> float:
        began = perf_counter()
        written = model.generate(text[None, :read], max_new_tokens=n, min_new_tokens=n, **fixed, **assisted)
        assert torch.equal(written[0], text[: read + n])
        return perf_counter() - began

    return write(len(text) - read) - write(1)


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--code", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--prose", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    parser.add_argument("--guesses", nargs="+", type=int, default=[3, 7], help="tokens looked up at a time")
    parser.add_argument("--read", type=int, default=1000, help="tokens of each text that are the prompt")
    parser.add_argument("--tokens", type=int, default=200, help="written behind it")
    args = parser.parse_args()
    words = tokenizer.load(demo.MODEL)
    for dtype in args.dtypes:
        model = model_of("qwen3.5", dtype)
        for kind in ("code", "prose"):
            ways = {"one by one": {}} | {str(n): {"prompt_lookup_num_tokens": n} for n in args.guesses}
            took: dict[str, list[float]] = {way: [] for way in ways}
            with accelerate_transformers():
                for file in getattr(args, kind):
                    text = torch.tensor(tokenizer.prompt_ids(words, file.read_text()[2000:]))[: args.read + args.tokens]
                    for way, assisted in ways.items():
                        took[way].append(seconds(model, text, args.read, **assisted))
            times = {way: median(a / b for a, b in zip(took["one by one"], took[way], strict=True)) for way in ways}
            speed = {way: args.tokens / median(each) for way, each in took.items()}
            print(json.dumps({"dtype": dtype, "text": kind, "tokens_per_second": speed, "times": times}), flush=True)


if __name__ == "__main__":
    main()
