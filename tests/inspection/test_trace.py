from typing import Any

import pytest
import torch

from gated_deltanet import CausalLM, get_preset
from gated_deltanet.inspection import trace as tracing
from gated_deltanet.inspection.trace import effective_rank, memory_length, trace
from gated_deltanet.layers import GatedDeltaNet
from gated_deltanet.models import ModelConfig
from gated_deltanet.models.presets import MIXERS
from gated_deltanet.ops.decay import decay_mask
from gated_deltanet.ops.gated_delta_mix.reference import unit
from gated_deltanet.ops.gated_delta_rule.reference import step


def random_tokens(L: int) -> torch.Tensor:
    return torch.randint(0, 257, (L,), generator=torch.Generator().manual_seed(1))


def small_model() -> CausalLM:
    torch.manual_seed(0)
    return CausalLM(ModelConfig(20, 2, (GatedDeltaNet(n_heads=3, d_k=4, d_v=6),), d_ff=16, vocab_size=257)).double()


def test_memory_length_is_the_row_sum_of_the_decay_mask():
    log_alpha = -torch.rand(11, 3, 2, dtype=torch.float64)  # [L, H, d]
    lengths = memory_length(log_alpha.exp())
    torch.testing.assert_close(lengths, decay_mask(log_alpha.movedim(0, -1)).sum(-1).movedim(-1, 0))
    torch.testing.assert_close(memory_length(log_alpha[5:].exp(), lengths[4]), lengths[5:])


def test_memory_length_of_a_constant_decay_tends_to_its_limit():
    assert memory_length(torch.full((400, 1, 1), 0.9))[-1].item() == pytest.approx(10)
    assert memory_length(torch.ones(400, 1, 1))[-1].item() == 400


def test_effective_rank_counts_equal_directions():
    S = torch.zeros(3, 5, 7)
    S[0, 0, 0], S[1, :2, :2], S[2, :5, :5] = 3, 2 * torch.eye(2), torch.eye(5)
    torch.testing.assert_close(effective_rank(S), torch.tensor([1.0, 2.0, 5.0]))
    assert effective_rank(torch.zeros(1, 5, 7)).isnan().all()


def test_norm_and_rank_are_those_of_the_papers_recurrence():
    """The first layer by hand: its convolutions as sums, Eq. 10 token by token."""
    model, tokens = small_model(), random_tokens(9)
    layer: Any = trace(model, tokens).layers[0]
    block: Any = model.layers[0]
    mixer, x = block.mixer, block.mixer_norm(model.embedding(tokens[None]))
    q, k, v = (convolved(getattr(mixer, f"{z}_proj")(x), getattr(mixer, f"{z}_conv").weight) for z in "qkv")
    q, k, v = (z.unflatten(-1, (3, -1)) for z in (q, k, v))
    S = torch.zeros(1, 3, 4, 6, dtype=torch.float64)
    for t in range(9):
        _, S = step(q[:, t], unit(k)[:, t], v[:, t], layer.alpha[None, t].log(), layer.beta[None, t], S)
        sigma = torch.linalg.svd(S[0])[1]
        p = sigma / sigma.sum(-1, keepdim=True)
        torch.testing.assert_close(layer.norm[t], sigma.square().sum(-1).sqrt(), rtol=1e-5, atol=0)
        torch.testing.assert_close(layer.rank[t].double(), (p**-p).prod(-1), rtol=1e-4, atol=0)


def convolved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """silu of Σ_i weight_i x_{t−3+i}. x: [1, L, d], weight: [d, 4]."""
    padded = torch.cat([x.new_zeros(1, 3, x.shape[2]), x], 1)
    return torch.nn.functional.silu(sum(padded[:, i : i + x.shape[1]] * weight[:, i] for i in range(4)))


def test_surprise_is_the_models_loss_and_expected_its_best_guess():
    model, tokens = small_model(), random_tokens(9)
    seen = trace(model, tokens)
    logits = model(tokens[None])[0][0]
    assert seen.surprise[0].isnan()
    assert seen.surprise[1:].mean().item() == pytest.approx(model.loss(tokens[None, :-1], tokens[None, 1:]).item())
    assert seen.expected.tolist() == [-1, *logits[:-1].argmax(-1).tolist()]


@pytest.mark.parametrize("name", MIXERS)
def test_pieces_do_not_change_what_is_seen(name, monkeypatch):
    model, tokens = CausalLM(get_preset(f"{name}-nano")), random_tokens(23)
    whole = trace(model, tokens)
    monkeypatch.setattr(tracing, "SAMPLES", 5)
    pieces = trace(model, tokens)
    assert pieces.at.tolist() == [4, 9, 14, 19, 22]
    torch.testing.assert_close(pieces.surprise, whole.surprise, equal_nan=True)
    for few, all_ in zip(pieces.layers, whole.layers, strict=True):
        at_pieces = [None if x is None else x[pieces.at] for x in all_[3:]]
        torch.testing.assert_close(
            [x for x in few if x is not None],
            [x for x in (*all_[:3], *at_pieces) if x is not None],
            rtol=1e-3,
            atol=1e-4,
        )


def test_hybrids_have_what_each_layer_has():
    seen = trace(CausalLM(get_preset("gdn-h2-nano")), random_tokens(6))
    has = [[name for name, x in layer._asdict().items() if x is not None] for layer in seen.layers]
    assert has == [["alpha", "memory", "norm", "rank"], ["alpha", "beta", "memory", "norm", "rank"], []]
    assert [None if x is None else x.shape for x in seen.layers[1]] == [(6, 3)] * 5


def test_one_token_is_enough():
    seen = trace(small_model(), random_tokens(1))
    assert seen.surprise.isnan().all()
    torch.testing.assert_close(seen.layers[0].memory, torch.ones(1, 3, dtype=torch.float64))
    torch.testing.assert_close(seen.layers[0].rank, torch.ones(1, 3))
