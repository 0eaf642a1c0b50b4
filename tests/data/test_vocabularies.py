"""Vocabularies other than the bytes."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated_deltanet.data import tokenizer
from gated_deltanet.data.sources import documents

SAMPLE = [each.text for each in documents(f"{Path(os.__file__).parent}/json")]
BPE = tokenizer.train_bpe(SAMPLE, 600)
BYTES = tokenizer.byte_tokenizer()


@pytest.mark.parametrize("each", [BPE, BYTES], ids=["bpe", "bytes"])
@given(st.lists(st.text()))
def test_every_text_comes_back_as_it_was(each, texts):
    found = tokenizer.encode(each, [*texts, tokenizer.END_OF_TEXT])
    assert [each.decode(ids.tolist()) for ids in found] == [*texts, tokenizer.END_OF_TEXT]
    assert all(tokenizer.end_of_text(each) not in ids for ids in found)


@given(st.lists(st.text()))
def test_batches_of_bytes_are_encoded_as_the_library_does(texts):
    assert [ids.tolist() for ids in tokenizer.encode(BYTES, texts)] == [BYTES.encode(text).ids for text in texts]


def test_bpe_is_as_large_as_asked_and_shorter_than_bytes():
    assert tokenizer.vocab_size(BPE) == 600
    assert tokenizer.end_of_text(BPE) == 0
    assert len(tokenizer.encode(BPE, SAMPLE)[0]) < len(SAMPLE[0]) / 2


def test_bpe_is_the_same_in_every_process():
    code = "from gated_deltanet.data import tokenizer; from gated_deltanet.data.sources import documents\n"
    code += f"texts = [each.text for each in documents({str(Path(os.__file__).parent / 'json')!r})]\n"
    code += "print(tokenizer.fingerprint(tokenizer.train_bpe(iter(texts), 600)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == tokenizer.fingerprint(BPE)


def test_bpe_of_little_text_is_smaller_and_still_whole():
    small = tokenizer.train_bpe(["ab ab"], 8192)
    assert 257 <= tokenizer.vocab_size(small) < 300
    assert small.decode(small.encode("Größe").ids) == "Größe"
    with pytest.raises(ValueError, match="vocab_size is 256, expected 257 or more"):
        tokenizer.train_bpe(["ab"], 256)


def test_tokenizer_is_got_by_name_file_and_folder(tmp_path):
    BPE.save(str(tmp_path / "tokenizer.json"))
    prints = {tokenizer.fingerprint(tokenizer.get(each)) for each in (tmp_path, str(tmp_path / "tokenizer.json"))}
    assert prints == {tokenizer.fingerprint(BPE)}
    assert tokenizer.is_bytes(tokenizer.get("bytes"))
    assert not tokenizer.is_bytes(BPE)
    with pytest.raises(FileNotFoundError, match=r"no file .*absent.json, expected a tokenizer.json"):
        tokenizer.get(tmp_path / "absent.json")


def test_unknown_name_tells_what_there_is(monkeypatch):
    def offline(name):
        raise OSError("no network")

    monkeypatch.setattr("gated_deltanet.data.reach.reachable", lambda: True)
    monkeypatch.setattr(tokenizer, "Tokenizer", type("Tokenizer", (), {"from_pretrained": offline}))
    with pytest.raises(ValueError, match=r"tokenizer is 'byte', expected \"bytes\", \"mistral\".*: no network"):
        tokenizer.get("byte")


def test_tokenizer_without_end_of_text_is_an_error():
    other = tokenizer.Tokenizer(tokenizer.models.BPE({"a": 0}, []))
    with pytest.raises(ValueError, match="the tokenizer has no end of text, expected one of"):
        tokenizer.end_of_text(other)


def test_mistral_names_the_extra_it_needs(monkeypatch):
    monkeypatch.setattr(tokenizer, "find_spec", lambda name: None)
    with pytest.raises(
        ModuleNotFoundError, match=r"mistral needs mistral-common: pip install 'gated-deltanet\[data\]'"
    ):
        tokenizer.get("mistral")


STRANGE = [
    "",
    " ",
    "  ",
    "x  y",
    "  Hello",
    "\n",
    "</s>",
    "<s>a</s>",
    "<0x0A>",
    "a▁b",
    "\0",
    "🙂🙂",
    "日本語",
    "\t\tx",
    "a\r\nb",
]


@pytest.mark.filterwarnings("ignore")  # theirs
def test_mistral_encodes_as_its_own_encoder():
    pytest.importorskip("mistral_common", reason="mistral-common is not installed")
    pytest.importorskip("sentencepiece", reason="sentencepiece, which mistral-common's encoder needs, is not installed")
    from mistral_common.tokens.tokenizers import sentencepiece  # pyright: ignore[reportMissingImports]

    theirs = sentencepiece.SentencePieceTokenizer(tokenizer.model_file())
    ours = tokenizer.get("mistral")
    assert (tokenizer.vocab_size(ours), tokenizer.end_of_text(ours)) == (32_000, 2)
    texts = [*STRANGE, *SAMPLE, *(line for text in SAMPLE for line in text.splitlines()), *random_texts()]
    found = [ids.tolist() for ids in tokenizer.encode(ours, texts)]
    assert found == [theirs.encode(text, bos=False, eos=False) for text in texts]
    assert [ours.decode(ids) for ids in found] == [text.replace("▁", " ") for text in texts]


def random_texts() -> list[str]:
    """Runs of few characters, where merges compete, and characters from all of Unicode."""
    draw = random.Random(0)
    alphabets = ["a ", " ab", " \n\tx", "aab  ", "e tin", "=-# ", "日本 a", [chr(i) for i in range(1, 0xD800, 7)]]
    return ["".join(draw.choices(letters, k=draw.randint(1, 40))) for letters in alphabets for _ in range(500)]
