from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gated_deltanet.data import tokenizer
from gated_deltanet.data.corpus import from_texts, tokenise
from gated_deltanet.data.rows import IGNORE, Rows, batches, cuts, n_targets, take

BYTES = tokenizer.byte_tokenizer()
END = 256


def corpus(lengths, seed=0):
    """Documents of these lengths, whose tokens tell them apart."""
    letters = np.random.default_rng(seed).integers(97, 123, sum(lengths)).astype(np.uint8).tobytes().decode()
    ends = np.cumsum(lengths)
    return from_texts([letters[end - n : end] for n, end in zip(lengths, ends, strict=True)], BYTES, valid=0)[0]


lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def sequences(batch):
    """(inputs, targets) of every stretch with one state."""
    bounds = batch.cu_seqlens.tolist()
    for first, stop in pairwise(bounds):
        yield batch.tokens[0, first:stop].tolist(), batch.targets[0, first:stop].tolist()


@given(lengths, st.integers(1, 50), st.integers(0, 3), st.booleans())
def test_every_token_is_learnt_exactly_once_in_an_epoch(lengths, L, epoch, reset):
    data = corpus(lengths)
    rows = Rows(data, L, seed=5, reset=reset)
    batch = take(rows, epoch * rows.per_epoch, rows.per_epoch)
    learnt = batch.targets[batch.targets != IGNORE]
    expected = [token for i in range(len(data)) for token in data.read(i, 0, int(data.positions[i]))[1:].tolist()]
    assert Counter(learnt.tolist()) == Counter(expected)
    assert len(learnt) == sum(lengths) + len(lengths) == rows.positions
    assert batch.tokens.numel() - len(learnt) < L


@given(lengths, st.integers(1, 50))
def test_documents_come_back_from_their_pieces(lengths, L):
    data = corpus(lengths)
    rows = Rows(data, L, seed=None)
    whole, document = [], []
    for inputs, targets in sequences(take(rows, 0, rows.per_epoch)):
        if targets[0] == IGNORE:
            assert set(targets) == {IGNORE}
            continue
        assert inputs[1:] == targets[:-1]
        assert inputs[0] == (document[-1] if document else END)
        document += targets
        if document[-1] == END:
            whole.append(document)
            document = []
    assert document == []
    assert whole == [data.read(i, 0, int(data.positions[i]))[1:].tolist() for i in range(len(data))]


@given(lengths, st.integers(1, 20), st.integers(1, 3), st.integers(1, 3), st.integers(0, 5))
def test_parts_of_the_ranks_are_the_batch_of_one(lengths, L, ranks, share, step):
    rows = Rows(corpus(lengths), L, seed=1)
    size = ranks * share
    (single,) = batches(rows, step, size=size, micro=size)
    parts = [
        batch for rank in range(ranks) for batch in batches(rows, step, size=size, micro=2, rank=rank, ranks=ranks)
    ]
    assert torch.equal(torch.cat([part.tokens for part in parts], 1), single.tokens)
    assert torch.equal(torch.cat([part.targets for part in parts], 1), single.targets)
    assert [pair for part in parts for pair in sequences(part)] == list(sequences(single))
    assert n_targets(rows, step, size=size) == int((single.targets != IGNORE).sum())


@given(lengths, st.integers(1, 20), st.integers(0, 30))
def test_a_later_step_needs_no_earlier_one(lengths, L, step):
    walking = Rows(corpus(lengths), L, seed=2)
    walked = [next(batches(walking, i, size=3, micro=3)) for i in range(step + 1)]
    resumed = next(batches(Rows(corpus(lengths), L, seed=2), step, size=3, micro=3))
    assert all(torch.equal(a, b) for a, b in zip(walked[-1], resumed, strict=True))


def test_order_changes_with_seed_and_epoch():
    data = corpus([50] * 30)
    first = {seed: take(Rows(data, 10, seed=seed), 0, 153).tokens.tolist() for seed in (0, 1)}
    assert first[0] != first[1]
    rows = Rows(data, 10, seed=0)
    assert take(rows, 153, 153).tokens.tolist() != first[0]
    assert take(Rows(data, 10, seed=0), 0, 153).tokens.tolist() == first[0]


def test_order_is_pinned():
    """A run resumed with another version of anything must see the same rows. A point is the end of text."""
    batch = take(Rows(from_texts(["abc", "defgh", "ij", "klmnop"], BYTES, valid=0)[0], 4, seed=3), 0, 5)
    assert bytes(ord(".") if token == END else token for token in batch.tokens[0].tolist()) == b"lmno.defgh.kp.ij.abc"


@given(lengths, st.integers(1, 20))
def test_reset_begins_a_state_at_each_document_else_at_each_row(lengths, L):
    data = corpus(lengths)
    with_reset, without = (Rows(data, L, seed=4, reset=reset) for reset in (True, False))
    packed = take(with_reset, 0, with_reset.per_epoch)
    begins = set(packed.cu_seqlens.tolist())
    assert set(range(0, packed.tokens.numel() + 1, L)) <= begins
    assert set((packed.tokens[0] == END).nonzero().flatten().tolist()) - begins <= padding(packed)
    plain = take(without, 0, without.per_epoch)
    assert torch.equal(plain.tokens, packed.tokens)
    assert torch.equal(plain.targets, packed.targets)
    assert set(plain.cu_seqlens.tolist()) - padding(plain) == set(range(0, plain.tokens.numel() + 1, L)) - padding(
        plain
    )


def padding(batch):
    return set((batch.targets[0] == IGNORE).nonzero().flatten().tolist())


@given(lengths, st.integers(1, 20))
def test_cuts_are_counted(lengths, L):
    rows = Rows(corpus(lengths), L, seed=None)
    pieces = [targets for _, targets in sequences(take(rows, 0, rows.per_epoch)) if targets[0] != IGNORE]
    assert cuts(rows) == len(pieces) - len(lengths)


def test_standard_library_is_rows_in_one_line():
    data = tokenise("stdlib", BYTES, valid=0.05)
    rows = Rows(data.train, 512)
    assert rows.positions == int(data.train.n_bytes.sum()) + len(data.train)
    assert len(data.valid) > 10
    (batch,) = batches(rows, 7, size=4, micro=4)
    assert batch.tokens.shape == batch.targets.shape == (1, 2048)
    assert batch.tokens.dtype == batch.targets.dtype == batch.cu_seqlens.dtype == torch.int64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 3, "micro": 1, "ranks": 2}, "a batch of 3 rows cannot be shared by 2 ranks, expected a multiple"),
        ({"size": 2, "micro": 1, "rank": 2, "ranks": 2}, "rank 2 of 2 is no batch"),
        ({"size": 0, "micro": 1}, "size 0"),
    ],
)
def test_impossible_batch_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        list(batches(Rows(corpus([3]), 2), 0, **options))


def test_empty_corpus_and_empty_rows_are_errors():
    train, valid = from_texts(["abc"], BYTES, valid=0)
    with pytest.raises(ValueError, match="the corpus has no documents"):
        Rows(valid, 4)
    with pytest.raises(ValueError, match="length is 0"):
        Rows(train, 0)
