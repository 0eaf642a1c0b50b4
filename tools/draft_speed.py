"""How much sooner text comes with a draft: python tools/draft_speed.py --code FILE … --prose FILE … [--draft FOLDER].

The text is that of the model in the package. For the time of a larger one it is put into a larger body: matrices filled
up with zeros, and layers that add nothing, which cost what others cost and leave the text nearly what it was.
"""

from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from gated_deltanet import CausalLM, ModelConfig, Sampling, Session, demo, load, stream
from gated_deltanet.data import tokenizer
from gated_deltanet.models.count import parameters
from gated_deltanet.models.weights import pack_weights, packed_format


def small() -> CausalLM:
    """The model in the package, in float32."""
    packed = load(demo.MODEL)
    model = CausalLM(packed.config)
    named = dict(packed.named_modules())
    with torch.no_grad():
        for name, x in model.named_parameters():
            x.copy_(getattr(named[name.rpartition(".")[0]], name.rpartition(".")[2]))
    return model


def enlarged(model: CausalLM, d_model: int, n_layers: int) -> CausalLM:
    """The same function, but for rounding, in a body of this size. Heads are as large as before, and more of them."""
    c = model.config
    (mixer,), times = c.mixers, d_model // c.d_model
    larger: Any = replace(mixer, n_heads=times * mixer.n_heads)  # pyright: ignore
    large = CausalLM(ModelConfig(d_model, n_layers, (larger,), round(2.5 * d_model), c.vocab_size, c.tied, c.norm_eps))
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, x in large.named_parameters():
            if name in own:
                x.zero_()
                x[tuple(slice(n) for n in own[name].shape)] = own[name]
                if name.endswith("norm.weight") and "out_norm" not in name:
                    x *= times**-0.5  # the mean square is over zeros, too
            elif name.endswith("out_proj.weight"):
                x.zero_()
    return large


def measure(model: CausalLM, drafts: dict[str, Any], prompts: list[list[int]], sampling: Sampling, rounds: int) -> dict:
    """Median tokens/s behind the first token, by draft; drafts take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in drafts}
    for prompt in prompts:
        for _ in range(rounds):
            for name, draft in drafts.items():
                pieces = stream(Session(model), prompt, sampling, draft=draft)
                next(pieces)
                began = perf_counter()
                count = sum(1 for _ in pieces)
                seconds[name].append((perf_counter() - began) / count)
    return {name: 1 / median(each) for name, each in seconds.items()}


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--code", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--prose", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--draft", type=Path, metavar="FOLDER", help="a smaller model of the same tokenizer")
    parser.add_argument("--weights", nargs="+", default=["float32", "int8", "int4"])
    parser.add_argument("--bodies", nargs="+", default=["128x4", "384x11", "768x16"], help="d_model x layers")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.7])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    words = tokenizer.load(demo.MODEL)
    for body in args.bodies:
        d_model, n_layers = map(int, body.split("x"))
        for weights in args.weights:
            model = small() if d_model == small().config.d_model else enlarged(small(), d_model, n_layers)
            size = parameters(model.config) / 1e6
            pack_weights(model, weights)
            drafts: dict[str, Any] = {"none": None, "prompt": "prompt"}
            if args.draft:
                draft = load(args.draft)
                drafts["model"] = draft if packed_format(draft) else pack_weights(draft, weights)
            for kind in ("code", "prose"):
                texts = [file.read_text()[2000:6000] for file in getattr(args, kind)]
                prompts = [tokenizer.prompt_ids(words, text) for text in texts]
                for temperature in args.temperatures:
                    sampling = Sampling(temperature=temperature, max_tokens=args.tokens)
                    speed = measure(model, drafts, prompts, sampling, args.rounds)
                    shown = (f"{name} {x:.0f} ({x / speed['none']:.2f} ×)" for name, x in speed.items())
                    print(f"{size:.0f} M {weights} {kind} {temperature}:", ", ".join(shown), flush=True)


if __name__ == "__main__":
    main()
