"""Text as rows of tokens: sources → tokenizer → corpus, in memory or in shards on disk → rows.

    from gated_deltanet.data import get_tokenizer, open_corpus, prepare, tokenise
    from gated_deltanet.data.rows import Rows, batches

    prepare("texts/*.jsonl", "bytes", "tokens")  # once: text too large for memory; as `gdn data prepare`
    corpus = open_corpus("tokens", "train")
    corpus = tokenise("stdlib", get_tokenizer("bytes")).train  # or without a folder
    rows = Rows(corpus, length=512, seed=0)
    for step in range(100):
        for batch in batches(rows, step, size=32, micro=8, rank=0, ranks=1):
            loss = model.loss(batch.tokens, batch.targets, cu_seqlens=batch.cu_seqlens)

The files in the order to read them: sources, formats, chat, tokenizer, corpus, rows; then shards, prepare. `rows` needs
torch and is not imported here: the processes that prepare a corpus do not.
"""

from .corpus import Corpus, tokenise
from .prepare import prepare
from .shards import open_corpus, read_manifest
from .sources import documents
from .tokenizer import get as get_tokenizer
from .tokenizer import train_bpe

__all__ = [
    "Corpus",
    "documents",
    "get_tokenizer",
    "open_corpus",
    "prepare",
    "read_manifest",
    "tokenise",
    "train_bpe",
]
