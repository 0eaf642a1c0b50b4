from dataclasses import replace
from itertools import islice

import pytest
import torch

from gated_deltanet import CausalLM, get_preset
from gated_deltanet.data.tokenizer import byte_tokenizer
from gated_deltanet.models.generate import generate, stream
from gated_deltanet.models.sampling import Sampling
from gated_deltanet.models.session import Session

BYTES = byte_tokenizer()
PROMPTS = [
    list(text.encode()) for text in ("def f", "a", "import this, whatever that may be: it is longer than a window")
]
GREEDY = Sampling(temperature=0, max_tokens=9)


@pytest.fixture(scope="module", params=["gdn", "gdn-h1", "gdn-h2", "mamba", "mamba2", "transformer", "samba"])
def model(request):
    return nano(request.param)


@pytest.fixture(scope="module")
def gdn():
    return nano("gdn")


def nano(name):
    """With logits far enough from each other: rounding must not decide."""
    torch.manual_seed(0)
    model = CausalLM(get_preset(f"{name}-nano"), "gpt2")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.0 if parameter.ndim == 1 else 3.0
    return model


@torch.no_grad()
def greedy_by_hand(model, prompt, n):
    """Everything read again for each token."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(model(torch.tensor([tokens]))[0][0, -1].argmax()))
    return tokens[len(prompt) :]


def test_batch_of_unequal_prompts_equals_one_by_one_and_no_cache(model):
    together = generate(model, PROMPTS, GREEDY, tokenizer=BYTES)
    for prompt, completion in zip(PROMPTS, together, strict=True):
        assert completion.tokens == greedy_by_hand(model, prompt, 9)
        assert [completion] == generate(model, [prompt], GREEDY, tokenizer=BYTES)
        pieces = list(stream(Session(model), prompt, GREEDY, tokenizer=BYTES))
        assert [piece.token for piece in pieces] == completion.tokens
        assert "".join(piece.text for piece in pieces) == completion.text == BYTES.decode(completion.tokens)
        assert [piece.reason for piece in pieces] == [None] * 8 + ["max_tokens"]


def test_what_a_row_draws_does_not_depend_on_the_others(gdn):
    sampling = Sampling(top_p=0.9, max_tokens=8, seed=5)
    tokens = [completion.tokens for completion in generate(gdn, PROMPTS, sampling)]
    assert [completion.tokens for completion in generate(gdn, PROMPTS[::-1], sampling)][1] == tokens[1]
    assert generate(gdn, PROMPTS[1:], replace(sampling, seed=6))[0].tokens == tokens[1]
    alone = stream(Session(gdn), PROMPTS[2], replace(sampling, seed=7))
    assert [piece.token for piece in alone] == tokens[2]
    assert generate(gdn, PROMPTS, sampling) == generate(gdn, PROMPTS, sampling)
    assert generate(gdn, PROMPTS, replace(sampling, seed=50))[0].tokens != tokens[0]


def test_rows_end_by_themselves_and_the_others_go_on(model):
    whole = [completion.tokens for completion in generate(model, PROMPTS, GREEDY)]
    end = whole[1][4]
    for tokens, completion in zip(whole, generate(model, PROMPTS, GREEDY, end=end), strict=True):
        ended = end in tokens
        assert completion.tokens == (tokens[: tokens.index(end)] if ended else tokens)
        assert completion.reason == ("end_of_text" if ended else "max_tokens")


def test_end_of_text_is_neither_shown_nor_read(gdn):
    whole = greedy_by_hand(gdn, PROMPTS[0], 9)
    end, session = whole[6], Session(gdn)
    n = whole.index(end)
    *pieces, last = stream(session, PROMPTS[0], GREEDY, tokenizer=BYTES, end=end)
    assert [piece.token for piece in pieces] == whole[:n]
    assert last.reason == "end_of_text"
    assert "".join(piece.text for piece in [*pieces, last]) == BYTES.decode(whole[:n])
    assert session.length == len(PROMPTS[0]) + n


def test_stop_string_across_tokens_ends_the_text_before_it(gdn):
    *_, last = stream(Session(gdn), PROMPTS[0], GREEDY, tokenizer=BYTES)
    text = generate(gdn, PROMPTS[:1], GREEDY, tokenizer=BYTES)[0].text
    stop = text[3:5]
    sampling = replace(GREEDY, stop=("never", stop))
    (completion,) = generate(gdn, PROMPTS[:1], sampling, tokenizer=BYTES)
    pieces = list(stream(Session(gdn), PROMPTS[0], sampling, tokenizer=BYTES))
    assert completion.text == "".join(piece.text for piece in pieces) == text[: text.index(stop)]
    assert completion.reason == pieces[-1].reason == "stop"
    assert last.reason == "max_tokens"


def test_session_can_be_continued_after_any_piece(model):
    prompt, session = PROMPTS[0], Session(model)
    first = [piece.token for piece in islice(stream(session, prompt, GREEDY), 5)]
    assert session.length == len(prompt) + 5
    rest = [piece.token for piece in stream(session, [], replace(GREEDY, max_tokens=4))]
    assert first + rest == greedy_by_hand(model, prompt, 9)


def test_repetition_penalty_is_for_prompt_and_completion(gdn):
    sampling = replace(GREEDY, repetition_penalty=1e9, max_tokens=40)
    together = generate(gdn, PROMPTS, sampling)
    for prompt, completion in zip(PROMPTS, together, strict=True):
        assert len({*prompt, *completion.tokens}) == len({*prompt}) + 40
    assert [piece.token for piece in stream(Session(gdn), PROMPTS[0], sampling)] == together[0].tokens


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: generate(model, [], GREEDY), r"prompts are of \[\] tokens, expected at least one"),
        (lambda model: generate(model, [[1], []], GREEDY), r"prompts are of \[1, 0\] tokens"),
        (lambda model: next(stream(Session(model), [], GREEDY)), "the session is empty"),
        (lambda model: generate(model, [[1]], replace(GREEDY, stop=("a",))), "expected a tokenizer with it"),
        (lambda model: next(stream(two_sequences(model), [], GREEDY)), "is of 2 sequences, expected one"),
        (lambda model: generate(model, [[257]], GREEDY), "tokens holds 257, expected 0 to 256"),
    ],
)
def test_what_cannot_be_continued_is_refused(gdn, call, message):
    with pytest.raises(ValueError, match=message):
        call(gdn)


def two_sequences(model):
    session = Session(model)
    session.append(torch.zeros(2, 3, dtype=torch.int64))
    return session
