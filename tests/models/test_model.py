"""Every architecture of the paper, at its smallest size: one path for training, prefill and decoding."""

from itertools import pairwise

import pytest
import torch
from budget import relative_error

from gated_deltanet import CausalLM, ModelConfig, get_preset
from gated_deltanet.layers import Attention, GatedDeltaNet
from gated_deltanet.layers.retnet import RetNetState
from gated_deltanet.models.presets import MIXERS
from gated_deltanet.models.state import last, map_state, pack, tensors, unpack


@pytest.fixture(params=MIXERS, name="model")
def nano(request):
    torch.manual_seed(0)
    model = CausalLM(get_preset(f"{request.param}-nano"))
    for name, p in model.named_parameters():  # ones and zeros would hide what is left out
        if p.ndim == 1 and not name.endswith(("A_log", "dt_bias")):
            torch.nn.init.normal_(p, mean=0.8, std=0.3)
    return model


def tokens(*shape):
    return torch.randint(257, shape, generator=torch.Generator().manual_seed(1))


def test_overfits_one_batch(model):
    batch = tokens(2, 25)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        loss = model.loss(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 5
    assert losses[-1] < 0.5 * losses[0]


@torch.no_grad()
@pytest.mark.parametrize("cuts", [range(71), [0, 1, 40, 70]], ids=["by tokens", "by pieces"])
def test_cached_decoding_equals_the_full_forward(model, cuts):
    batch = tokens(2, 70)  # longer than the window
    expected, _ = model(batch)
    parts, state = [], None
    for a, b in pairwise(cuts):
        logits, state = model(batch[:, a:b], state)
        parts.append(logits)
    assert (torch.cat(parts, 1) - expected).abs().max() < 1e-5
    assert relative_error(torch.cat(parts, 1), expected) < 1e-5


def test_packed_documents_equal_separate_ones_with_their_states_and_gradients(model):
    documents = [tokens(1, n) for n in (9, 2, 80)]
    cu_seqlens = torch.tensor([0, 9, 11, 91])
    packed, state = model(torch.cat(documents, 1), cu_seqlens=cu_seqlens)
    apart = [model(document) for document in documents]
    expected = torch.cat([logits for logits, _ in apart], 1)
    assert (packed - expected).detach().abs().max() < 1e-5
    grads = [torch.autograd.grad(x.square().mean(), list(model.parameters())) for x in (packed, expected)]
    for got, want in zip(*grads, strict=True):
        assert relative_error(got, want) < 1e-5
    for i, (_, alone) in enumerate(apart):
        for got, want in zip(tensors(map_state(lambda x, i=i: x[i : i + 1], state)), tensors(alone), strict=True):
            got = got if got.shape == want.shape else got[:, : want.shape[1]]  # a cache as long as the longest needs
            assert relative_error(got.detach(), want.detach()) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(model, side):
    documents = [tokens(n) for n in (9, 70, 1)]
    padded = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True, padding_value=7, padding_side=side)
    ones = [torch.ones_like(document) for document in documents]
    mask = torch.nn.utils.rnn.pad_sequence(ones, batch_first=True, padding_side=side)
    row, cu_seqlens = pack(padded, mask)
    logits, state = model(row, cu_seqlens=cu_seqlens)
    after, _ = model(tokens(3, 1), state)
    for i, document in enumerate(documents):
        expected, alone = model(document[None])
        assert (unpack(logits, mask)[i][mask[i].bool()] - expected[0]).abs().max() < 1e-5
        assert (last(logits, cu_seqlens)[i] - expected[0, -1]).abs().max() < 1e-5
        assert (after[i] - model(tokens(3, 1)[i : i + 1], alone)[0][0]).abs().max() < 1e-5


def test_loss_is_the_cross_entropy_of_the_logits(model):
    batch, targets = tokens(2, 30), tokens(3, 30)[1:]
    targets[0, :4] = -100
    expected = torch.nn.functional.cross_entropy(model(batch)[0].flatten(0, 1), targets.flatten())
    torch.testing.assert_close(model.loss(batch, targets), expected)
    assert model.loss(batch, targets, reduction="none").shape == (2, 30)


def test_checkpointing_gives_the_same_gradients(model):
    batch = tokens(2, 30)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(model.loss(batch, batch), parameters)
    model.checkpointing = True
    for got, want in zip(torch.autograd.grad(model.loss(batch, batch), parameters), expected, strict=True):
        torch.testing.assert_close(got, want)


@torch.no_grad()
def test_the_state_stays_as_small_as_it_is(model):
    """Of recurrent layers and windows, however many tokens have been read."""
    sizes = []
    for length in (3, 90):
        _, state = model(tokens(2, length))
        sizes.append([x.shape for x in tensors(state)])
    full_attention = any(isinstance(m, Attention) and m.window is None for m in model.config.mixers)
    assert (sizes[0] == sizes[1]) != full_attention


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda model: model(torch.zeros(5, dtype=torch.int64)),
            r"tokens is torch.int64 \[5\], expected int64 \[B, L\]",
        ),
        (lambda model: model(torch.zeros(1, 5)), "tokens is torch.float32"),
        (lambda model: model(torch.full((1, 5), 50)), "tokens holds 50, expected 0 to 49"),
        (lambda model: model(torch.full((1, 5), -1)), "tokens holds -1, expected 0 to 49"),
        (lambda model: model(torch.zeros(1, 5, dtype=torch.int64), (None,)), "state is of 1 layers, expected 2"),
        (
            lambda model: model(torch.zeros(1, 5, dtype=torch.int64), (None, RetNetState())),
            "state is a RetNetState in layer 1, expected a GatedDeltaNetState: is it another model's?",
        ),
        (lambda model: pack(torch.zeros(2, 3), torch.zeros(3, 2)), r"mask is \[3, 2\], expected \[2, 3\]"),
        (lambda model: unpack(torch.zeros(1, 3), torch.ones(2, 2)), r"row is \[1, 3\], expected .* T = 4"),
        (lambda model: last(torch.zeros(1, 3), torch.tensor([0, 3, 3])), "expected at least one token"),
    ],
)
def test_what_cannot_be_read_is_refused(call, message):
    model = CausalLM(ModelConfig(12, 2, (GatedDeltaNet(1, 4, 6),), 16, 50))
    with pytest.raises(ValueError, match=message):
        call(model)


def test_head_of_its_own_and_layers_without_mlp():
    config = ModelConfig(12, 3, (GatedDeltaNet(1, 4, 6), Attention(2, 8)), d_ff=0, vocab_size=50, tied=False)
    model = CausalLM(config)
    names = [name for name, _ in model.named_parameters()]
    assert "head.weight" in names
    assert not any("mlp" in name for name in names)
    assert [type(config.mixer(layer)) for layer in range(3)] == [GatedDeltaNet, Attention, GatedDeltaNet]
    assert model(tokens(2, 5) % 50)[0].shape == (2, 5, 50)
