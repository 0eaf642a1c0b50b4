"""Train a small Gated DeltaNet on texts of your own and let it write: python examples/train_on_your_text.py FOLDER.

FOLDER may hold .txt, .md, .py, .jsonl or .parquet files. The run is kept in runs/yours; after Ctrl-C,
`gdn train --resume runs/yours` goes on.
"""

import argparse

from gated_deltanet import Sampling, generate, load
from gated_deltanet.data import get_tokenizer
from gated_deltanet.train import resolve, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", help="a file, a folder or a glob")
    parser.add_argument("--preset", default="gdn-nano", help="gdn presets lists them")
    parser.add_argument("--tokens", default="1M", help="to train on")
    parser.add_argument("--out", default="runs/yours", help="the run's folder")
    parser.add_argument("--prompt", default="The ", help="how the text begins that the model writes at the end")
    options = parser.parse_args()

    train(resolve(options.preset, None, {"data": options.texts, "tokens": options.tokens}), options.out)

    model, tokenizer = load(options.out), get_tokenizer(options.out)
    prompt = tokenizer.encode(options.prompt).ids
    (completion,) = generate(model, [prompt], Sampling(max_tokens=200, temperature=0.8), tokenizer=tokenizer)
    print(options.prompt + completion.text)


if __name__ == "__main__":
    main()
