"""The tokenizer and the documents of a run."""

import warnings
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from tokenizers import Tokenizer

from gated_deltanet.data import tokenizer
from gated_deltanet.data.chat import read_template
from gated_deltanet.data.corpus import Corpus, is_valid, tokenise
from gated_deltanet.data.prepare import prepare
from gated_deltanet.data.shards import MANIFEST, open_corpus
from gated_deltanet.data.sources import describe, documents, names

from .recipe import Recipe


def make_tokenizer(recipe: Recipe) -> Tokenizer:
    """Of the prepared data, or what the recipe names; of several the first that is available."""
    if is_prepared(recipe.data):
        return tokenizer.load(recipe.data)
    return first_tokenizer(recipe.tokenizer.split(","), recipe)


def find_chat_template(recipe: Recipe) -> str | None:
    """Of the prepared data, or of the folder that the recipe names as its tokenizer."""
    return read_template(recipe.data if is_prepared(recipe.data) else recipe.tokenizer)


def first_tokenizer(names: list[str], recipe: Recipe) -> Tokenizer:
    name, *others = names
    try:
        return one_tokenizer(name, recipe)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if not others:
            raise
        warnings.warn(f"the tokenizer is {others[0]}: {error}", stacklevel=2)
        return first_tokenizer(others, recipe)


def one_tokenizer(name: str, recipe: Recipe) -> Tokenizer:
    kind, _, size = name.partition(":")
    if kind != "bpe":
        return tokenizer.get(name)
    if not size.isdigit():
        raise ValueError(f"tokenizer is {name!r}, expected bpe:SIZE, such as bpe:8192")
    return tokenizer.train_bpe(training_texts(recipe), int(size))


def training_texts(recipe: Recipe) -> Iterator[str]:
    texts = (document.text for document in documents(recipe.data, skipped=Counter()))  # `open_data` tells of them
    return (text for text in texts if not is_valid(text, recipe.valid, recipe.seed))


def open_data(
    recipe: Recipe, texts: Tokenizer, chat_template: str | None, folder: Path, ranks: int
) -> tuple[Corpus, Corpus]:
    """To train on, and to validate. What is streamed is prepared in the folder first."""
    if is_prepared(recipe.data):
        return prepared(recipe.data)
    if any(name.startswith("hf:") for name in names(recipe.data)):
        if ranks > 1 and not is_prepared(folder):
            raise ValueError(
                f"{recipe.data} is to be prepared by one process: gdn data prepare {recipe.data}; then --data FOLDER"
            )
        prepare(recipe.data, texts, folder, valid=recipe.valid, seed=recipe.seed, chat_template=chat_template)
        return prepared(folder)
    data = tokenise(recipe.data, texts, valid=recipe.valid, seed=recipe.seed, chat_template=chat_template)
    if data.skipped:
        warnings.warn(f"documents skipped in {recipe.data}: {describe(data.skipped)}", stacklevel=2)
    return data.train, data.valid


def is_prepared(folder: str | Path) -> bool:
    return (Path(folder) / MANIFEST).is_file()


def prepared(folder: str | Path) -> tuple[Corpus, Corpus]:
    return open_corpus(folder, "train"), open_corpus(folder, "valid")


def fingerprint(corpus: Corpus) -> str:
    """Of the documents' lengths and the tokenizer: other data is told from the same without reading it."""
    digest = sha256(corpus.fingerprint.encode())
    for lengths in (corpus.positions, corpus.n_bytes):
        digest.update(lengths.tobytes())
    return digest.hexdigest()[:32]
