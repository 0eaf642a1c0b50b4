"""Tokens by a decoder are those of the model, in every way a session or `generate` uses it."""

import pytest
import torch
from budget import relative_error

from gated_deltanet import CausalLM, ModelConfig, Sampling, Session, generate, stream
from gated_deltanet.layers import Attention, GatedDeltaNet
from gated_deltanet.models.decoder import Decoder, supports
from gated_deltanet.models.weights import pack_weights
from gated_deltanet.ops import native
from gated_deltanet.ops.linear import FORMATS

pytestmark = pytest.mark.skipif(native.unusable() is not None, reason=str(native.unusable()))

MIXERS = (
    GatedDeltaNet(2, 8, 6, n_v_heads=4, beta_max=2.0),
    Attention(4, 6, n_kv_heads=2, window=9),
    Attention(2, 8, qk_norm="head", gate=True, rope_dims=4),
    Attention(2, 8, qk_norm="all", rope_theta=None),
)
TOKENS = torch.randint(70, (3, 90), generator=torch.Generator().manual_seed(0))


def model_of(*mixers, weights="int8", tied=True, d_ff=40):
    torch.manual_seed(0)
    return pack_weights(CausalLM(ModelConfig(36, len(mixers), mixers, d_ff, 70, tied=tied)), weights).eval()


@torch.inference_mode()
@pytest.mark.parametrize("mixers", [*((mixer,) for mixer in MIXERS), MIXERS], ids=str)
@pytest.mark.parametrize("first", [1, 20])
def test_steps_are_those_of_the_model(mixers, first):
    model = model_of(*mixers, weights="float32", d_ff=0 if first == 1 else 40)  # others round what differs in bits
    _, state = model.hidden(TOKENS[:, :first])
    decoder = Decoder(model, state)
    for t in range(first, TOKENS.shape[1]):  # caches and tables of turns grow on the way
        x, state = model.hidden(TOKENS[:, t : t + 1], state)
        assert relative_error(decoder.step(TOKENS[:, t]), x[:, 0]) < 1e-5, t
    for got, expected in zip(decoder.state, state, strict=True):
        assert relative_error(got[0][:, : expected[0].shape[1]], expected[0][:, : got[0].shape[1]]) < 1e-5


@torch.inference_mode()
@pytest.mark.parametrize("weights", FORMATS)
def test_a_sequence_has_the_same_bits_among_others(weights):
    model = model_of(*MIXERS, weights=weights)
    alone, together = (Decoder(model, model.hidden(TOKENS[:n, :20])[1]) for n in (1, 3))
    together.load(model.hidden(TOKENS[:, :20])[1])
    for row, buffer in zip(together.state, alone.state, strict=True):
        for x, y in zip(row, buffer, strict=True):
            y.copy_(x[:1])
    for t in range(20, 60):
        assert torch.equal(alone.step(TOKENS[:1, t])[0], together.step(TOKENS[:, t])[0])


def test_models_of_other_parts_are_not_supported():
    assert supports(model_of(*MIXERS))
    assert not supports(CausalLM(ModelConfig(36, 1, MIXERS[:1], 40, 70)))
    assert not supports(model_of(GatedDeltaNet(2, 8, 6, n_h=2)))
    assert not supports(model_of(Attention(2, 8, post_norm=True)))


def test_sessions_have_values():
    """What is kept is a copy of what the decoder goes on to change."""
    session = Session(model_of(*MIXERS))
    session.read(TOKENS[0, :10])
    session.read(TOKENS[0, 10:11])
    kept, logits = session.snapshot(), session.logits.clone()
    other = session.fork()
    for t in range(11, 30):
        session.read(TOKENS[0, t : t + 1])
    end = session.logits.clone()
    assert torch.equal(other.logits, logits)
    for t in range(11, 30):
        other.read(TOKENS[0, t : t + 1])
    assert torch.equal(other.logits, end)
    session.restore(kept)
    assert session.length == 11
    for t in range(11, 30):
        session.read(TOKENS[0, t : t + 1])
    assert torch.equal(session.logits, end)
    assert session.nbytes > 0


def test_rollback_takes_back_steps(tmp_path):
    model = model_of(*MIXERS)
    session, other = Session(model, keep=5), Session(model)
    for s in (session, other):
        s.read(TOKENS[0, :10])
        for t in range(10, 14):
            s.append(TOKENS[0, t : t + 1])
    other_logits = other.logits.clone()
    session.append(TOKENS[0, 20:21])
    session.append(TOKENS[0, 21:22])
    session.rollback(2)
    assert torch.equal(session.logits, other_logits)
    session.save(tmp_path / "state")
    again = Session(model)
    again.load(tmp_path / "state")
    assert torch.equal(again.append(TOKENS[0, 30:31]), other.append(TOKENS[0, 30:31]))


def test_an_interruption_finds_the_token_read(monkeypatch):
    model = model_of(*MIXERS)
    session = Session(model)
    session.read(TOKENS[0, :10])
    session.read(TOKENS[0, 10:11])
    run, calls = Decoder.step, []

    def interrupted(self, tokens):
        run(self, tokens)
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)

        return self.hidden.clone()

    monkeypatch.setattr(Decoder, "step", interrupted)
    pieces = []
    with pytest.raises(KeyboardInterrupt):
        pieces.extend(stream(session, TOKENS[0, 11:12].tolist(), Sampling(max_tokens=9, temperature=0)))
    assert session.length == 14


def test_a_batch_of_prompts_is_continued_as_each_alone():
    model = model_of(*MIXERS)
    prompts = [TOKENS[0, :5].tolist(), TOKENS[1, :9].tolist(), TOKENS[2, :2].tolist()]
    sampling = Sampling(max_tokens=20, temperature=0)
    together = [c.tokens for c in generate(model, prompts, sampling)]
    assert together == [generate(model, [prompt], sampling)[0].tokens for prompt in prompts]
    assert together == [[p.token for p in stream(Session(model), prompt, sampling)] for prompt in prompts]


def test_a_wrong_token_changes_nothing():
    session = Session(model_of(*MIXERS))
    session.read(TOKENS[0, :10])
    logits = session.read(TOKENS[:1, 10:11])
    with pytest.raises(ValueError, match="tokens holds 70, expected 0 to 69"):
        session.read(torch.tensor([[70]]))
    assert session.length == 11
    assert torch.equal(session.logits, logits)
