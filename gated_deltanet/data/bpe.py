"""A vocabulary made from a corpus: byte-level BPE, as GPT-2 splits text."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .tokenizer import END_OF_TEXT, as_text

SMALLEST = 257  # the bytes and the end of text


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """The same texts give the same tokenizer, which encodes every text, and gives it back as it was.

    It has fewer tokens than vocab_size if the texts are too short for as many. End of text is token 0.
    """
    if vocab_size < SMALLEST:
        raise ValueError(f"vocab_size is {vocab_size}, expected {SMALLEST} or more: the bytes and the end of text")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return as_text(tokenizer)
