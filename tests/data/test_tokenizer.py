import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gated_deltanet import CausalLM, get_preset, save
from gated_deltanet.data import tokenizer

BYTES = tokenizer.byte_tokenizer()


@pytest.mark.parametrize("first", range(13))
def test_tokens_are_the_bytes_and_text_comes_back(first):
    text = "".join(chr(i) for i in range(first, 0x110000, 1009) if not 0xD800 <= i < 0xE000) + " \r\n\0\t  "
    ids = BYTES.encode(text).ids
    assert ids == list(text.encode())
    assert BYTES.decode(ids) == text


@given(st.lists(st.integers(0, 255)))
def test_bytes_that_are_no_text_are_replaced(ids):
    assert BYTES.decode(ids) == bytes(ids).decode(errors="replace")


def test_end_of_text_is_256_and_cannot_be_written_in_a_text(tmp_path):
    BYTES.save(str(tmp_path / "tokenizer.json"))
    for each in (BYTES, tokenizer.load(tmp_path)):
        assert each.token_to_id(tokenizer.END_OF_TEXT) == 256
        assert each.get_vocab_size() == get_preset("gdn-tiny").vocab_size
        assert each.encode(tokenizer.END_OF_TEXT).ids == list(tokenizer.END_OF_TEXT.encode())
        assert each.decode([65, 256, 66]) == "AB"


@pytest.mark.filterwarnings("ignore")  # theirs
def test_folder_of_a_model_holds_a_tokenizer_for_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    save(CausalLM(get_preset("gdn-nano")), tmp_path, BYTES)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert theirs.encode("Größe\n") == tokenizer.prompt_ids(BYTES, "Größe\n") == [256, *"Größe\n".encode()]
    assert theirs.decode(list("Größe\n".encode())) == "Größe\n"


@pytest.mark.parametrize("content", [None, "{"])
def test_missing_or_spoiled_tokenizer_is_named(content, tmp_path):
    if content:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises((FileNotFoundError, ValueError), match=r"tokenizer\.json"):
        tokenizer.load(tmp_path)
