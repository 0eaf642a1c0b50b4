"""Look for needles in a haystack with any causal language model: python examples/evaluate_a_hugging_face_model.py NAME.

NAME is a folder or a name on the Hugging Face hub (pip install 'gated-deltanet[hf]'), or the folder of a model of ours.
"""

import argparse

from gated_deltanet import eval


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048], help="of the prompts, in tokens")
    parser.add_argument("--limit", type=int, default=20, help="needles of each kind and length")
    options = parser.parse_args()

    result = eval.needle(eval.open(options.model), lengths=options.lengths, limit=options.limit)
    print(result)  # a table beside the paper's numbers; result.save(folder) writes it with JSON and a figure
    for cell in result.document["cells"]:
        print(cell["task"], cell["length"], f"{cell['accuracy']:.1f} % found")


if __name__ == "__main__":
    main()
