"""Text as rows of tokens: sources → tokenizer → corpus, in memory or in shards on disk → rows.

    from gated_deltanet.data import tokenizer
    from gated_deltanet.data.memory import tokenise
    from gated_deltanet.data.rows import Rows, batches

    data = tokenise("stdlib", tokenizer.get("bytes"))
    rows = Rows(data.train, length=512, seed=0)
    for step in range(100):
        for batch in batches(rows, step, size=32, micro=8, rank=0, ranks=1):
            loss = model.loss(batch.tokens, batch.targets, cu_seqlens=batch.cu_seqlens)

Text too large for memory is prepared once, by `gdn data prepare` or `prepare.prepare`, and read with
`prepared.open_corpus(folder)`. The files in the order to read them: sources, formats, tokenizer, encoded, corpus,
memory, rows; then shards, prepared, prepare.
"""
