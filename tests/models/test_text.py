import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from gated_deltanet.data.tokenizer import byte_tokenizer
from gated_deltanet.models.generate import TextStream, cut_at_stop

BYTES = byte_tokenizer()
STOPS = st.lists(st.text("abä", min_size=1, max_size=4), max_size=3)


def pieces(tokens, tokenizer=BYTES, prompt=(), stop=()):
    stream = TextStream(tokenizer, prompt, stop)
    return [*(stream.push(token) for token in tokens), stream.finish()]


def before_stop(text, stop):
    """Letter by letter: the end is where one is first complete."""
    for end in range(len(text) + 1):
        complete = [s for s in stop if text[:end].endswith(s)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


@given(st.text(st.sampled_from("aé€𝄞 \n"), max_size=20))
def test_characters_come_whole_and_as_soon_as_they_can(text):
    stream, shown = TextStream(BYTES), ""
    for character in text:
        *first, last = character.encode()
        assert all(stream.push(byte) == "" for byte in first)
        assert stream.push(last) == character
        shown += character
    assert stream.finish() == ""


@given(st.lists(st.integers(0, 256)))
def test_pieces_of_any_bytes_make_the_whole_text(tokens):
    assert "".join(pieces(tokens)) == BYTES.decode(tokens)


@given(st.lists(st.sampled_from([0x61, 0x80, 0x82, 0xC3, 0xE2, 0xF0, 0xFF]), max_size=60))
def test_pieces_of_bytes_that_are_no_text_make_the_whole_text(tokens):
    assert "".join(pieces(tokens)) == BYTES.decode(tokens)


@pytest.mark.parametrize("token", [0xFF, 0x80, 0xE2])
def test_work_is_linear_in_bytes_that_are_no_text(token):
    stream = TextStream(BYTES)
    for _ in range(200):
        stream.push(token)
        assert len(stream.window) < 20


@given(st.text("abä", max_size=20), STOPS)
def test_text_ends_before_the_first_stop_string(text, stop):
    assert "".join(pieces(text.encode(), stop=stop)) == before_stop(text, stop)


@given(st.lists(st.text("abä", max_size=6), max_size=6), STOPS)
def test_stop_strings_are_found_however_the_text_is_cut(parts, stop):
    shown = held = ""
    for part in parts:
        new, held, found = cut_at_stop(held + part, stop)
        shown += new
        if found:
            break
    assert shown + held == before_stop("".join(parts), stop)


def test_nothing_of_a_stop_string_is_shown():
    assert pieces(b"one\nUs\nUser: two", stop=["\nUser:"]) == [
        *("o", "n", "e", "", "", "", "\nUs", "", "", "", "", "", "", "", "", "", ""),
    ]


def test_beginning_of_a_stop_string_is_shown_at_the_end():
    assert pieces(b"ab", stop=["abc"]) == ["", "", "ab"]


def test_stop_string_within_the_last_open_character():
    assert pieces([0x61, 0xE2], stop=["\N{REPLACEMENT CHARACTER}"]) == ["a", "", ""]


@pytest.fixture
def sentencepiece():
    """As Llama's: words begin with ▁, and bytes stand for characters without a token."""
    words = ["<unk>", "▁Hello", "▁world", "!", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>"))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def test_spaces_and_bytes_of_sentencepiece(sentencepiece):
    tokens = [1, 2, 3, *(4 + byte for byte in "€".encode()), 2]
    assert pieces(tokens, sentencepiece) == ["Hello", " world", "!", "", "", "€", " world", ""]
    assert pieces(tokens[1:], sentencepiece, prompt=tokens[:1]) == [" world", "!", "", "", "€", " world", ""]
    assert "".join(pieces(tokens, sentencepiece)) == sentencepiece.decode(tokens)
    assert "".join(pieces([1, 4 + 0xE2, 4 + 0x82, 2], sentencepiece)).endswith("world")
