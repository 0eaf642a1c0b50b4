"""Whatever a draft guesses, greedy tokens are those without it, bit for bit, and so is what a session then holds; drawn
tokens are distributed as without."""

from itertools import islice

import pytest
import torch

from gated_deltanet import CausalLM, ModelConfig, Sampling, Session, generate, get_preset, stream
from gated_deltanet.layers import Attention, GatedDeltaNet
from gated_deltanet.models.decoder import AHEAD, Decoder
from gated_deltanet.models.draft import Ahead, ModelDraft, PromptDraft, accepted
from gated_deltanet.models.sampling import probabilities
from gated_deltanet.models.state import tensors
from gated_deltanet.models.weights import pack_weights
from gated_deltanet.ops import native
from gated_deltanet.ops.linear import FORMATS

pytestmark = pytest.mark.skipif(native.unusable() is not None, reason=str(native.unusable()))

VOCABULARY = 70
GDN = GatedDeltaNet(2, 8, 6, n_v_heads=4, beta_max=2.0)
MODELS = {
    "gdn": (GDN,),
    "hybrid": (GDN, Attention(4, 6, n_kv_heads=2, window=9), Attention(2, 8, qk_norm="head", gate=True, rope_dims=4)),
    "transformer": (Attention(4, 6, n_kv_heads=2), Attention(2, 8, qk_norm="all", rope_theta=None)),
}
TOKENS = torch.randint(VOCABULARY, (90,), generator=torch.Generator().manual_seed(0))
PROMPT = (TOKENS[:12].tolist() * 3)[:31]  # which says things twice
SAMPLINGS = {
    "greedy": Sampling(temperature=0, max_tokens=40),
    "drawn": Sampling(temperature=0.7, top_p=0.95, repetition_penalty=1.1, seed=3, max_tokens=40),
}


def model_of(mixers, weights="int8", seed=0, noise=0.0):
    """With opinions: its tokens are not all alike. noise: what another model of nearly the same opinions differs by."""
    torch.manual_seed(seed)
    model = CausalLM(ModelConfig(36, len(mixers), mixers, 40, VOCABULARY))
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        for x in model.parameters():
            x *= 1.0 if x.ndim == 1 else 2.0
            x += noise * x.std(correction=0) * torch.randn_like(x)
    return pack_weights(model, weights).eval()


def read_one_by_one(session, tokens):
    return torch.stack([session.append(token[None])[0] for token in tokens])


def assert_same_state(a, b):
    """But for the room that caches have: there are zeros."""
    left, right = (list(tensors(each.snapshot().now.state)) for each in (a, b))
    for x, y in zip(left, right, strict=True):
        x, y = (z[:, : min(x.shape[1], y.shape[1])] if z.ndim > 1 else z for z in (x, y))
        assert torch.equal(x, y)


@torch.inference_mode()
@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("mixers", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("instruction_set", native.usable_instruction_sets() if not native.unusable() else [])
def test_tokens_looked_at_have_the_bits_of_tokens_one_by_one(mixers, weights, instruction_set):
    before = native.instruction_set()
    native.use_instruction_set(instruction_set)
    try:
        looking, stepping = (Session(model_of(mixers, weights)) for _ in range(2))
        looking.read(TOKENS[:20])
        stepping.read(TOKENS[:20])
        at = 20
        for T, n in ((5, 5), (1, 1), (7, 2), (looking.most_ahead, 3), (6, 6), (2, 1), (9, 8)):
            now = TOKENS[at : at + T]
            got = looking.look(now)
            looking.take(n)
            assert torch.equal(got[:n], read_one_by_one(stepping, now[:n])), (T, n)
            assert torch.equal(looking.logits, stepping.logits)
            at += n
        assert looking.length == stepping.length == at
        assert_same_state(looking, stepping)
    finally:
        native.use_instruction_set(before)


@pytest.mark.parametrize("mixers", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(
    ("guesser", "sampling"),
    [("prompt", "greedy"), ("prompt", "drawn"), ("the same", "greedy"), ("similar", "greedy"), ("another", "greedy")],
)
def test_a_draft_changes_no_token(mixers, guesser, sampling):
    model, sampling = model_of(mixers), SAMPLINGS[sampling]
    draft = {
        "prompt": "prompt",
        "the same": model,
        "similar": model_of(mixers, "int4", noise=0.05),
        "another": model_of(MODELS["gdn"], "bfloat16", seed=9),
    }[guesser]
    expected_session, session = Session(model), Session(model)
    expected = list(stream(expected_session, PROMPT, sampling))
    assert list(stream(session, PROMPT, sampling, draft=draft)) == expected
    assert session.length == expected_session.length
    assert_same_state(session, expected_session)


@pytest.mark.parametrize("weights", FORMATS)
def test_a_batch_with_a_draft_is_the_batch_without(weights):
    model = model_of(MODELS["hybrid"], weights)
    prompts = [PROMPT, PROMPT[:2], PROMPT[5:20]]
    for sampling in SAMPLINGS.values():
        expected = generate(model, prompts, sampling, end=3)
        assert generate(model, prompts, sampling, end=3, draft="prompt") == expected
    expected = generate(model, prompts, SAMPLINGS["greedy"], end=3)
    for draft in (model_of(MODELS["gdn"], weights, seed=9), model):
        assert generate(model, prompts, SAMPLINGS["greedy"], end=3, draft=draft) == expected


def test_right_guesses_save_passes(monkeypatch):
    model, looks = model_of(MODELS["hybrid"]), []
    look = Decoder.look
    monkeypatch.setattr(Decoder, "look", lambda self, tokens: looks.append(len(tokens)) or look(self, tokens))
    session = Session(model)
    ahead = Ahead(session, PromptDraft(PROMPT), SAMPLINGS["greedy"], None, None)
    session.read(PROMPT)
    for token in (PROMPT[:12] * 5)[len(PROMPT) % 12 :][:30]:
        ahead.read(torch.tensor([token]))
    assert session.length == len(PROMPT) + 30
    assert len(looks) < 12


def test_wrong_guesses_become_rare():
    session = Session(model_of(MODELS["gdn"]))
    session.read(PROMPT)
    draft = PromptDraft([])
    draft.guess = lambda most, choose: guessed.append(1) or [0] * most
    ahead, guessed = Ahead(session, draft, Sampling(max_tokens=400), None, None), []
    for _ in range(200):
        ahead.read(torch.tensor([1]))
    assert 10 < len(guessed) < 40
    assert session.length == len(PROMPT) + 200


def test_a_model_as_its_own_draft_is_always_right(monkeypatch):
    """Drawn, too: p / q = 1."""
    model, wrong = model_of(MODELS["gdn"]), []
    read = Ahead.read

    def counted(self, token):
        wrong.append(bool(self.guesses) and self.guesses[0] != int(token))
        return read(self, token)

    monkeypatch.setattr(Ahead, "read", counted)
    first = list(stream(Session(model), PROMPT, SAMPLINGS["drawn"], draft=model))
    assert len(wrong) == 40
    assert not any(wrong)
    assert list(stream(Session(model), PROMPT, SAMPLINGS["drawn"], draft=model)) == first  # by its seed


@pytest.mark.parametrize("q", [[0.5, 0.2, 0.3, 0.0], [0.1, 0.6, 0.25, 0.05], [0.0, 0.0, 0.0, 1.0]])
def test_accepted_guesses_and_what_replaces_them_are_distributed_as_p(q):
    """Exactly, but for the steps of the random numbers."""
    p, q, M = torch.tensor([[0.1, 0.6, 0.25, 0.05]]), torch.tensor([q]), 400
    steps, got = ((torch.arange(M) + 0.5) / M).tolist(), torch.zeros(4)
    for guess in range(4):
        right = sum(accepted(guess, p, q, first, 0.0) == guess and first * q[0, guess] < p[0, guess] for first in steps)
        got[guess] += q[0, guess] * right / M
        if q[0, guess] > p[0, guess]:
            tokens = torch.tensor([accepted(guess, p, q, 1 - 1e-9, second) for second in steps])
            got += q[0, guess] * (1 - right / M) * tokens.bincount(minlength=4) / M
    assert (got - p[0]).abs().max() < 4 / M


def test_drawn_tokens_are_distributed_as_without_a_draft():
    """How often the first and the second most probable token come, against their chances behind the tokens before."""
    n, sampling = 300, Sampling(temperature=6.0, top_k=4, max_tokens=3)
    model, draft = model_of(MODELS["gdn"]), model_of(MODELS["gdn"], "int4", noise=0.3)
    texts = [completion.tokens for completion in generate(model, [PROMPT] * n, sampling, draft=draft)]
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT + text for text in texts]))[0][:, len(PROMPT) - 1 : -1]
        p = probabilities(logits.flatten(0, 1), sampling, None).double().unflatten(0, (n, 3))
    chances, order = p.sort(-1, descending=True)
    for rank in range(2):
        chance, came = chances[:, :, rank], (order[:, :, rank] == torch.tensor(texts)).double()
        errors = (came - chance).sum(0) / (chance * (1 - chance)).sum(0).sqrt()
        assert errors.abs().max() < 3.5, errors


def test_a_session_can_be_used_between_pieces():
    model, sampling = model_of(MODELS["hybrid"]), SAMPLINGS["greedy"]
    expected = [piece.token for piece in stream(Session(model), PROMPT, sampling)]
    session, tokens = Session(model), []
    for piece in stream(session, PROMPT, sampling, draft=model):
        tokens.append(piece.token)
        if len(tokens) % 3 == 0:
            rest = Sampling(temperature=0, max_tokens=5)
            forked = [p.token for p in stream(session.fork(), [], rest, draft="prompt")]
            assert forked == expected[len(tokens) :][:5] or len(tokens) > 35
    assert tokens == expected
    assert session.length == len(PROMPT) + 40


def test_an_interruption_leaves_what_was_read(monkeypatch):
    model, sampling = model_of(MODELS["hybrid"]), SAMPLINGS["greedy"]
    expected = [piece.token for piece in stream(Session(model), PROMPT, sampling)]
    look, looks = Decoder.look, []

    def interrupted(self, tokens):
        looks.append(tokens)
        if len(looks) == 4:
            raise KeyboardInterrupt
        return look(self, tokens)

    session, tokens = Session(model), []
    monkeypatch.setattr(Decoder, "look", interrupted)
    pieces = stream(session, PROMPT, sampling, draft="prompt")
    with pytest.raises(KeyboardInterrupt):
        tokens.extend(piece.token for piece in pieces)
    monkeypatch.undo()
    assert session.length == len(PROMPT) + len(tokens)
    rest = stream(session, [], Sampling(temperature=0, max_tokens=10))
    assert [*tokens, *(piece.token for piece in rest)] == expected[: len(tokens) + 10]


def test_prompt_draft_guesses_what_came_before():
    draft = PromptDraft([1, 2, 3, 4, 5, 9, 1, 2, 3])
    assert draft.guess(8, None) == [4, 5, 9]  # as many as were found again
    assert draft.guess(2, None) == [4, 5]
    draft.push(7)
    assert draft.guess(8, None) == []
    assert PromptDraft([]).guess(8, None) == []
    assert PromptDraft([1, 1, 1, 1]).guess(8, None) == [1]


def test_a_draft_of_a_model_reads_each_token_once():
    model = model_of(MODELS["hybrid"])
    draft, session = ModelDraft(model, TOKENS[:20].tolist()), Session(model)
    session.read(TOKENS[:20])
    for at in range(20, 60, 3):
        guesses = draft.guess(5, lambda logits: int(logits.argmax()))
        rest = islice(stream(session.fork(), [], Sampling(temperature=0)), 5)
        assert guesses == [piece.token for piece in rest]
        for token in TOKENS[at : at + 3]:
            draft.push(int(token))
            session.read(token[None])


def test_wrong_drafts_are_told():
    model, sampling = model_of(MODELS["gdn"]), SAMPLINGS["greedy"]

    def refused(message, draft="prompt", model=model, **options):
        with pytest.raises(ValueError, match=message):
            generate(model, [PROMPT], sampling, draft=draft)
        with pytest.raises(ValueError, match=message):
            next(stream(Session(model, **options), PROMPT, sampling, draft=draft))

    refused("^draft is 'suffix', expected a model or \"prompt\"$", "suffix")
    refused('^draft is a int, expected a model or "prompt"$', 3)
    other = pack_weights(CausalLM(ModelConfig(36, 1, (GDN,), 40, 71)), "int8")
    refused("^draft: its vocabulary is of 71 tokens, expected the model's 70$", other)
    refused("^draft: the draft cannot read several tokens at once, expected packed", CausalLM(get_preset("gdn-nano")))
    refused("^draft: the model cannot read several tokens at once", model=CausalLM(get_preset("gdn-nano")))
    with pytest.raises(ValueError, match=r"^draft: the session has keep = 3, expected 0"):
        next(stream(Session(model, keep=3), PROMPT, sampling, draft="prompt"))


def test_look_and_take_are_told_what_they_can():
    session = Session(model_of(MODELS["hybrid"]))
    assert session.most_ahead == 9  # the window's
    assert Session(model_of(MODELS["gdn"])).most_ahead == AHEAD
    with pytest.raises(ValueError, match=r"^look: tokens is \[1, 3\], expected 1 to 9 behind others of one sequence"):
        session.look(TOKENS[:3])
    session.read(TOKENS[:5])
    with pytest.raises(ValueError, match=r"^look: tokens is \[1, 10\]"):
        session.look(TOKENS[:10])
    with pytest.raises(ValueError, match="tokens holds 70, expected 0 to 69"):
        session.look([1, 70])
    session.look(TOKENS[:3])
    assert session.ahead == 3
    for n in (0, 4, True, 1.0):
        with pytest.raises(ValueError, match=f"^take: n is {n}, expected 1 to 3"):
            session.take(n)
    session.take(2)
    assert (session.ahead, session.length) == (1, 7)
    session.snapshot()
    assert (session.ahead, session.length) == (0, 7)
    with pytest.raises(ValueError, match=r"^take: n is 1, expected 1 to 0"):
        session.take(1)
