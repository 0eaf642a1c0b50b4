"""A corpus: documents as tokens, in memory or in shards on disk."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from .chat import Content, Turn, learnt_bytes, template_for, text_of
from .sources import describe, documents
from .tokenizer import encode, end_of_text, fingerprint, vocab_size

SPLITS = ("train", "valid", "all")
VALID = 0.01  # share of the documents that is kept for validation


class Encoded(NamedTuple):
    """Documents as the arrays of one shard."""

    tokens: np.ndarray
    """End of text, document, end of text, document, …, end of text; uint16 or uint32."""
    positions: np.ndarray
    """[n], int64: of each document, one more than it has tokens."""
    n_bytes: np.ndarray
    """[n], int64: the length of its text in UTF-8, of a conversation of what is learnt of it."""
    valid: np.ndarray
    """[n], bool: whether it is for validation."""
    learnt: np.ndarray | None = None
    """Bool, for each token: whether it is learnt; None: all are."""


def encode_documents(contents: Sequence[Content], tokenizer: Tokenizer, *, valid: float, seed: int) -> Encoded:
    """valid: the share for validation."""
    documents, learnt = encode_contents(contents, tokenizer)
    return Encoded(
        joined(documents, end_of_text(tokenizer), vocab_size(tokenizer)),
        np.array([len(each) + 1 for each in documents], np.int64),
        np.array([learnt_bytes(each) for each in contents], np.int64),
        np.array([is_valid(text_of(each), valid, seed) for each in contents], bool),
        learnt,
    )


def encode_contents(contents: Sequence[Content], tokenizer: Tokenizer) -> tuple[list[np.ndarray], np.ndarray | None]:
    """The tokens of each document, and which tokens of the shard are learnt, as `Encoded` has it.

    Turns are encoded one by one, as a prompt is and what a model then writes; so is the end of text after them learnt
    if the last turn is.
    """
    texts = [each for each in contents if isinstance(each, str)]
    if len(texts) == len(contents):
        return encode(tokenizer, texts), None
    turns = [(Turn(each, True),) if isinstance(each, str) else each for each in contents]
    ids = iter(encode_turns([turn for each in turns for turn in each], tokenizer))
    documents, masks = [], [np.array([False])]
    for each in turns:
        tokens = [next(ids) for _ in each]
        documents.append(np.concatenate(tokens))
        masks += [np.full(len(found), turn.learnt) for found, turn in zip(tokens, each, strict=True)]
        masks.append(np.array([each[-1].learnt]))
    return documents, np.concatenate(masks)


def encode_turns(turns: Sequence[Turn], tokenizer: Tokenizer) -> list[np.ndarray]:
    found = encode(tokenizer, [turn.text for turn in turns])
    if any(turn.marked for turn in turns):
        special = Tokenizer.from_str(tokenizer.to_str())
        special.encode_special_tokens = False
        for i, turn in enumerate(turns):
            if turn.marked:
                found[i] = np.array(special.encode(turn.text, add_special_tokens=False).ids, np.uint32)
    return found


def joined(documents: Sequence[np.ndarray], end: int, vocab_size: int) -> np.ndarray:
    largest = max((int(each.max()) for each in documents if each.size), default=0)
    if largest >= vocab_size:
        raise ValueError(f"the tokenizer gave token {largest}, expected less than its vocab_size of {vocab_size}")
    dtype = dtype_for(vocab_size)
    ends = np.array([end], dtype)
    return np.concatenate([ends, *(part for each in documents for part in (each.astype(dtype), ends))])


def dtype_for(vocab_size: int) -> type[np.unsignedinteger]:
    """The smaller of uint16 and uint32 that holds every token."""
    if vocab_size > 2**32:
        raise ValueError(f"the vocabulary has {vocab_size} tokens, expected at most 2**32, which uint32 holds")
    return np.uint16 if vocab_size <= 2**16 else np.uint32


def is_valid(text: str, share: float, seed: int) -> bool:
    """By its content: equal documents are on one side, and further ones move no other."""
    digest = blake2b(text.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "big") < share * 2**64


@dataclass(frozen=True, eq=False)
class Corpus:
    """Where the tokens of each document are. A shard reads: end of text, document, end of text, document, end of text.

    Of a document of m tokens the model reads end of text and the m tokens, and learns the m tokens and end of text:
    m + 1 positions. So every token is learnt, the first one too, and the loss is the length of a code for the text.
    """

    shard: np.ndarray
    """[n], the shard of each document."""
    start: np.ndarray
    """[n], in its shard, the end of text before it."""
    positions: np.ndarray
    """[n], one more than it has tokens."""
    n_bytes: np.ndarray
    """[n], the length of its text in UTF-8."""
    tokens: Callable[[int], np.ndarray]
    """The tokens of a shard, uint16 or uint32."""
    learnt: Callable[[int], np.ndarray | None] | None
    """Which tokens of a shard are learnt; None: all, of a shard or of all of them."""
    vocab_size: int
    end_of_text: int
    fingerprint: str
    """Of the tokenizer."""

    def __len__(self) -> int:
        return len(self.positions)

    def read(self, document: int, first: int, stop: int) -> np.ndarray:
        """What positions first, …, stop - 1 of a document read, and after it what the last of them learns."""
        start = int(self.start[document])
        return self.tokens(int(self.shard[document]))[start + first : start + stop + 1]

    def learns(self, document: int, first: int, stop: int) -> np.ndarray | None:
        """Whether positions first, …, stop - 1 of a document learn what follows; None: all do."""
        learnt = None if self.learnt is None else self.learnt(int(self.shard[document]))
        start = int(self.start[document])
        return None if learnt is None else learnt[start + first + 1 : start + stop + 1]


def corpus_of(
    shards: Sequence[Encoded],
    split: str,
    tokens: Callable[[int], np.ndarray],
    learnt: Callable[[int], np.ndarray | None] | None = None,
    *,
    vocab_size: int,
    end_of_text: int,
    fingerprint: str,
) -> Corpus:
    """The documents of one split. tokens, learnt: of a shard; those in `shards` are not looked at."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}, expected one of {', '.join(SPLITS)}")
    chosen = [np.full(len(each.valid), True) if split == "all" else each.valid == (split == "valid") for each in shards]
    pairs = list(zip(shards, chosen, strict=True))
    return Corpus(
        shard=np.repeat(np.arange(len(shards)), [np.count_nonzero(mask) for mask in chosen]),
        start=concatenated([(np.cumsum(each.positions) - each.positions)[mask] for each, mask in pairs]),
        positions=concatenated([each.positions[mask] for each, mask in pairs]),
        n_bytes=concatenated([each.n_bytes[mask] for each, mask in pairs]),
        tokens=tokens,
        learnt=learnt,
        vocab_size=vocab_size,
        end_of_text=end_of_text,
        fingerprint=fingerprint,
    )


def concatenated(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *arrays])


class Tokenised(NamedTuple):
    """A corpus in memory, for text that is small enough: nothing is written."""

    train: Corpus
    valid: Corpus
    skipped: dict[str, int]
    """How many documents were skipped, by reason."""


def tokenise(
    source: str | Sequence[str],
    tokenizer: Tokenizer,
    *,
    valid: float = VALID,
    seed: int = 0,
    field: str = "text",
    separator: str | None = None,
    chat_template: str | None = None,
) -> Tokenised:
    """The documents of a source as tokens; `valid` of them, chosen by content and seed, are for validation.

    chat_template: in Jinja, for rows with `messages` (`chat`).
    """
    skipped: Counter[str] = Counter()
    template = template_for(chat_template, tokenizer)
    found = documents(source, field=field, separator=separator, skipped=skipped, template=template)
    contents = [each.content for each in found]
    if not contents:
        raise ValueError(f"no documents in {source}; skipped: {describe(skipped) or 'none'}")
    train, held_out = from_texts(contents, tokenizer, valid=valid, seed=seed)
    return Tokenised(train, held_out, dict(skipped))


def from_texts(
    texts: Sequence[Content], tokenizer: Tokenizer, *, valid: float = VALID, seed: int = 0
) -> tuple[Corpus, Corpus]:
    """The texts as two corpora, to train and to validate."""
    encoded = encode_documents(texts, tokenizer, valid=valid, seed=seed)
    of_split = partial(
        corpus_of,
        [encoded],
        tokens=lambda _: encoded.tokens,
        learnt=None if encoded.learnt is None else lambda _: encoded.learnt,
        vocab_size=vocab_size(tokenizer),
        end_of_text=end_of_text(tokenizer),
        fingerprint=fingerprint(tokenizer),
    )
    return of_split("train"), of_split("valid")
