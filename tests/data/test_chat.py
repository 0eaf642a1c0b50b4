"""Conversations: of prompt and answer, and of messages, only the answers are learnt."""

import json
from collections import Counter

import pytest
import torch
from tokenizers import AddedToken

from gated_deltanet.data import documents, open_corpus, prepare, tokenise
from gated_deltanet.data.chat import conversation, read_template, template_for
from gated_deltanet.data.corpus import encode_documents
from gated_deltanet.data.rows import IGNORE, Rows, n_targets, take
from gated_deltanet.data.tokenizer import byte_tokenizer, load, train_bpe

BYTES, END = byte_tokenizer(), 256
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And 3 + 3?"},
    {"role": "assistant", "content": "6"},
]
TEMPLATE = """{{ bos_token }}{% for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def write_rows(file, *rows) -> str:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def learnt(batch) -> str:
    """The text of the targets; a point for the end of text."""
    targets = [token for token in batch.targets[0].tolist() if token != IGNORE]
    return "".join("." if token == END else chr(token) for token in targets)


def test_of_prompt_and_answer_the_answer_and_its_end_are_learnt(tmp_path):
    source = write_rows(tmp_path / "x.jsonl", {"prompt": "Q: one?", "answer": " yes"}, {"text": "plain"})
    corpus = tokenise(source, BYTES, valid=0).train
    rows = Rows(corpus, 20, seed=None)
    batch = take(rows, 0, 1)
    assert learnt(batch) == " yes.plain."
    assert bytes(batch.tokens[0, 1:12].tolist()) == b"Q: one? yes"
    assert rows.n_learnt == n_targets(rows, 0, size=1) == 11
    assert rows.positions == 18
    assert corpus.n_bytes.tolist() == [4, 5]


@pytest.mark.parametrize("length", [1, 5, 7, 64])
def test_answers_are_learnt_once_wherever_rows_are_cut(length, tmp_path):
    source = write_rows(tmp_path / "x.jsonl", *({"prompt": f"say {i}: ", "answer": str(i) * 9} for i in range(7)))
    rows = Rows(tokenise(source, BYTES, valid=0).train, length, seed=2)
    batch = take(rows, 0, rows.per_epoch)
    assert Counter(learnt(batch)) == Counter("".join(str(i) * 9 + "." for i in range(7)))
    assert n_targets(rows, 0, size=rows.per_epoch) == rows.n_learnt == 70
    singly = [n_targets(rows, i, size=1) for i in range(rows.per_epoch)]
    assert singly == [int((take(rows, i, 1).targets != IGNORE).sum()) for i in range(rows.per_epoch)]


def test_messages_without_a_template_are_laid_out_plainly(tmp_path):
    source = write_rows(tmp_path / "x.jsonl", {"messages": [*TALK, {"role": "user", "content": "Thanks."}]})
    (document,) = documents(source)
    assert document.text == "System: Be brief.\n\nUser: 2 + 2?\n\nAssistant: 4\n\nUser: And 3 + 3?\n\nAssistant: 6"
    corpus = tokenise(source, BYTES, valid=0).train
    assert learnt(take(Rows(corpus, 200, seed=None), 0, 1)) == " 4\n\n 6."


def test_the_chat_template_of_the_tokenizers_folder_is_used_and_its_marks_are_tokens(tmp_path):
    marked = train_bpe(["a b c"], 300)
    marked.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    (tmp_path / "t").mkdir()
    marked.save(str(tmp_path / "t" / "tokenizer.json"))
    (tmp_path / "t" / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    bad = {"messages": [{"role": "user", "content": "<|im_end|>"}, TALK[2]]}
    source = write_rows(tmp_path / "x.jsonl", {"messages": TALK}, bad)
    manifest = prepare(source, tmp_path / "t", tmp_path / "out", valid=0)
    assert manifest["skipped"] == {"special token written in a message": 1}
    assert read_template(tmp_path / "out") == TEMPLATE
    corpus, tokenizer = open_corpus(tmp_path / "out", verify=True), load(tmp_path / "out")
    batch = take(Rows(corpus, 300, seed=None), 0, 1)
    mark = tokenizer.token_to_id("<|im_start|>")
    assert int((batch.tokens == mark).sum()) == len(TALK)
    targets = [token for token in batch.targets[0].tolist() if token != IGNORE]
    assert tokenizer.decode(targets, skip_special_tokens=False) == "4<|im_end|>\n6<|im_end|>\n<|endoftext|>"


def test_shards_keep_what_is_learnt_and_plain_shards_are_as_ever(tmp_path):
    talks = [{"prompt": f"{i}?" * (i % 5), "answer": f"{i}!"} for i in range(90)]
    source = write_rows(tmp_path / "x.jsonl", *talks, *({"text": f"text {i} " * 9} for i in range(90)))
    manifest = prepare(source, BYTES, tmp_path / "out", valid=0.2, shard_bytes=300)
    assert len(manifest["shards"]) > 5
    memory = tokenise(source, BYTES, valid=0.2)
    for split, expected in (("train", memory.train), ("valid", memory.valid)):
        corpus = open_corpus(tmp_path / "out", split, verify=True)
        ours, theirs = (take(Rows(each, 16, seed=1), 0, 40) for each in (corpus, expected))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    plain = encode_documents(["a", "b"], BYTES, valid=0, seed=0)
    assert plain.learnt is None


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "a", "answer": 3}, "prompt or answer that is no text"),
        ({"prompt": "a", "answer": " "}, "empty answer"),
        ({"prompt": "a"}, "no text in the field 'text'"),
        ({"messages": "hello"}, "messages that are no list of role and content"),
        ({"messages": [{"role": "user"}]}, "messages that are no list of role and content"),
        ({"messages": [{"role": "user", "content": "a"}]}, "no answer in the messages"),
        ({"messages": []}, "no answer in the messages"),
    ],
)
def test_a_row_that_is_no_conversation_is_skipped_with_the_reason(row, reason, tmp_path):
    skipped: Counter[str] = Counter()
    assert list(documents(write_rows(tmp_path / "x.jsonl", row), skipped=skipped)) == []
    assert skipped == {reason: 1}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "the chat template is not Jinja as it should be"),
        ("{{ raise_exception('no system') }}", "the chat template cannot lay out messages: no system"),
        ("{{ ''.__class__.__mro__ }}", "the chat template cannot lay out messages"),
    ],
)
def test_a_template_that_cannot_be_used_is_told(template, message):
    with pytest.raises(ValueError, match=message):
        conversation(TALK, template_for(template, BYTES))


def test_a_template_that_rewrites_earlier_messages_is_not_used():
    last_only = "{{ messages[-1].content }}"
    assert conversation(TALK, template_for(last_only, BYTES)) == "chat template that changes earlier messages"


def test_prepare_is_a_function_after_any_order_of_imports():
    import gated_deltanet.data.prepare
    from gated_deltanet import data

    assert callable(data.prepare)
    assert callable(gated_deltanet.data.prepare)
