"""Each task's answers, worked out again from its tokens in plain Python."""

import pytest
import torch
from torch import Generator

from gated_deltanet.synthetic import copying, groups, mqar, recall, rewriting
from gated_deltanet.synthetic.batch import NOT_ASKED
from gated_deltanet.synthetic.tasks import TASKS


def seeded(seed=3):
    return Generator().manual_seed(seed)


def rows(batch):
    return list(zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True))


def test_mqar_asks_once_for_every_key():
    for tokens, targets in rows(mqar.mqar(seeded(), 50, pairs=7)):
        pairs = dict(zip(tokens[:14:2], tokens[1:14:2], strict=True))
        assert len(pairs) == 7
        assert max(pairs) < mqar.KEYS <= min(pairs.values())
        assert targets == [NOT_ASKED] * 14 + [pairs.get(token, NOT_ASKED) for token in tokens[14:]]
        assert sorted(token for token in tokens[14:] if token != 2 * mqar.KEYS) == sorted(pairs)


def test_of_a_key_that_was_rewritten_the_last_value_is_asked_for():
    for tokens, targets in rows(rewriting.rewritten(seeded(), 50, times=3)):
        last = dict(zip(tokens[:32:2], tokens[1:32:2], strict=True))  # of equal keys the last one stays
        assert sorted(tokens[32:]) == sorted(last) == list(range(rewriting.KEYS))
        assert sorted(tokens[:32:2].count(key) for key in last) == [1] * 4 + [3] * 4
        assert targets == [NOT_ASKED] * 32 + [last[key] for key in tokens[32:]]


def test_copying_asks_for_the_symbols_in_their_order():
    batch = copying.selective_copy(seeded(), 50, symbols=5, places=11)
    for tokens, targets in rows(batch):
        symbols = [token for token in tokens[:11] if token != copying.BLANK]
        assert tokens[11:] == [copying.ASK] * 5
        assert targets == [NOT_ASKED] * 11 + symbols
    assert len(batch.tokens[:, :11].ne(copying.BLANK).unique(dim=0)) > 30  # the places differ


def test_recall_asks_for_every_key_that_has_been_shown():
    for tokens, targets in rows(recall.noisy_recall(seeded(), 50, pairs=9, noise=13)):
        assert len(tokens) == 2 * 9 + 13
        seen, noise, wanted, at = {}, 0, [], 0
        while at < len(tokens):
            if tokens[at] >= recall.KEYS + recall.VALUES:
                noise, at = noise + 1, at + 1
                wanted.append(NOT_ASKED)
                continue
            key, value = tokens[at : at + 2]
            assert key < recall.KEYS <= value < recall.KEYS + recall.VALUES
            assert seen.setdefault(key, value) == value
            wanted += [value if key in tokens[:at] else NOT_ASKED, NOT_ASKED]
            at += 2
        assert (noise, targets) == (13, wanted)


@pytest.mark.parametrize("m", [2, 3, 5])
def test_words_are_multiplied_from_the_left(m):
    elements = groups.elements(m)
    for tokens, targets in rows(groups.words(seeded(), 20, m, length=11)):
        assert tokens[0] == len(elements)
        places, wanted = list(range(m)), []
        for token in tokens[1:]:
            places = [places[i] for i in elements[token]]
            wanted.append(elements.index(tuple(places)))
        assert targets == [NOT_ASKED, *wanted]


def test_words_are_of_the_moves_given_and_asked_for_in_their_second_half():
    swap, cycle = groups.number((1, 0, 2, 3)), groups.number((1, 2, 3, 0))
    batch = groups.words(seeded(), 9, 4, length=10, moves=[swap, cycle])
    assert set(batch.tokens[:, 1:].flatten().tolist()) == {swap, cycle}
    half = groups.second_half(batch).targets
    assert bool((half[:, :6] == NOT_ASKED).all())
    assert torch.equal(half[:, 6:], batch.targets[:, 6:])


def test_parity_is_the_word_problem_of_two_things():
    batch = groups.words(seeded(), 9, 2, length=17)
    assert batch.targets[:, 1:].equal(batch.tokens[:, 1:].cumsum(1) % 2)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_the_same_from_the_same_seed_and_fits_its_vocabulary(name):
    task = TASKS[name]
    for make, levels in ((task.train, task.trained), (task.score, task.scored)):
        for level in levels:
            batch, again, other = (make(seeded(seed), level) for seed in (3, 3, 4))
            assert torch.equal(batch.tokens, again.tokens)
            assert torch.equal(batch.targets, again.targets)
            assert not torch.equal(batch.tokens, other.tokens)
            assert batch.tokens.dtype == batch.targets.dtype == torch.int64
            assert batch.tokens.min() >= 0
            assert max(batch.tokens.max(), batch.targets.max()) < task.vocab_size
            assert bool((batch.targets != NOT_ASKED).any(1).all())
