import pytest
import torch

from gated_deltanet import CausalLM, get_preset
from gated_deltanet.layers import Attention, GatedDeltaNet, Mamba2, RetNet
from gated_deltanet.models import count
from gated_deltanet.models.presets import MIXERS, PRESETS, SIZES
from gated_deltanet.models.state import tensors
from gated_deltanet.train.recipes import resolve

OF_THE_ISSUE = {"retnet", "hgrn2", "mamba", "mamba2", "deltanet", "gdn", "transformer", "samba", "gdn-h1", "gdn-h2"}
ORDERS = {"gdn-swa-mamba2", "gdn-mamba2-swa", "mamba2-swa-gdn"}
OTHERS = {"linear-attention", "longhorn", "gdn-qwen35"} | ORDERS


def test_every_architecture_has_every_size():
    assert set(MIXERS) == OF_THE_ISSUE | OTHERS
    others = {"gdn-official-0.4b", "gdn-h1-official-0.4b", "gdn-demo", "gdn-h2-500m"}
    others |= {f"{name}-500m" for name in ORDERS} | {f"mamba2-matched-{size}" for size in SIZES}
    assert set(PRESETS) == {f"{name}-{size}" for name in MIXERS for size in SIZES} | others


@pytest.mark.parametrize(
    ("size", "target", "tolerance"),
    [("1.3b", 1.3e9, 0.03), ("400m", 4e8, 0.05), ("small", 25e6, 0.03), ("tiny", 4e6, 0.03), ("nano", 5e5, 0.03)],
)
def test_parameters_of_one_size_are_alike(size, target, tolerance):
    counts = [count.parameters(get_preset(f"{name}-{size}")) for name in (*MIXERS, "mamba2-matched")]
    assert max(counts) / min(counts) < 1.03
    assert all(abs(n / target - 1) < tolerance for n in counts)


@pytest.mark.parametrize("name", PRESETS)
def test_count_is_that_of_the_model_on_the_meta_device(name):
    config = get_preset(name)
    with torch.device("meta"):
        model = CausalLM(config)
    assert count.parameters(config) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gdn-1.3b", 1_309_295_488),
        ("gdn-h1-1.3b", 1_316_608_290),
        ("gdn-official-0.4b", 516_837_929),
        ("gdn-h1-official-0.4b", 530_764_962),
    ],
)
def test_official_sizes_count_what_the_official_code_counts(name, parameters):
    assert count.parameters(get_preset(name)) == parameters


def test_qwen35_has_the_shapes_of_the_published_0_8b():
    gdn, _, _, attention = get_preset("gdn-qwen35-400m").mixers
    assert gdn == GatedDeltaNet(n_heads=16, d_k=128, d_v=128)
    options = {"rope_theta": 1e7, "rope_dims": 64, "qk_norm": "head", "gate": True}
    assert attention == Attention(n_heads=8, d_head=256, n_kv_heads=2, **options)
    assert get_preset("gdn-qwen35-400m").norm_eps == 1e-6


def test_official_shapes():
    assert get_preset("gdn-1.3b").mixers == (GatedDeltaNet(n_heads=9, d_k=200, d_v=400),)
    h1 = (GatedDeltaNet(n_heads=9, d_k=192, d_v=384), Attention(n_heads=18, d_head=128, window=2048))
    assert get_preset("gdn-h1-1.3b").mixers == h1
    assert [type(m) for m in get_preset("gdn-h2-1.3b").mixers] == [Mamba2, GatedDeltaNet, Attention]
    assert get_preset("gdn-400m").mixers == (GatedDeltaNet(n_heads=6, d_k=128, d_v=256),)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MIXERS)
def test_every_size_has_the_papers_balance_between_mixer_and_mlp(name, size):
    paper, ours = (get_preset(f"{name}-{each}") for each in ("1.3b", size))
    assert abs(ours.d_ff * paper.d_model - paper.d_ff * ours.d_model) <= 0.25 * paper.d_ff * ours.d_model


@pytest.mark.parametrize("size", SIZES)
def test_windows_are_half_of_what_is_trained_on_and_retnet_has_four_heads_at_least(size):
    (_, attention), (retnet,) = (get_preset(f"{name}-{size}").mixers for name in ("gdn-h1", "retnet"))
    assert isinstance(attention, Attention)
    assert isinstance(retnet, RetNet)
    assert attention.window == resolve(f"gdn-h1-{size}").length // 2
    assert retnet.n_heads >= 4


@pytest.mark.parametrize("size", SIZES)
def test_matched_mamba2_has_a_state_of_gated_deltanets_bytes(size):
    ours, matched = (count.state_bytes(get_preset(f"{name}-{size}")) for name in ("gdn", "mamba2-matched"))
    assert abs(matched / ours - 1) < 0.05


def test_table_s2_has_one_shape_and_four_orders():
    configs = [get_preset(f"{name}-500m") for name in ("gdn-h2", *sorted(ORDERS))]
    assert {(c.n_layers, c.d_model, c.d_ff) for c in configs} == {(12, 1536, 6144)}
    assert len({c.mixers for c in configs}) == 4
    assert len({count.parameters(c) for c in configs}) == 1


@torch.no_grad()
@pytest.mark.parametrize("name", MIXERS)
def test_memory_is_what_a_model_in_bfloat16_keeps(name):
    config = get_preset(f"{name}-nano")
    model = CausalLM(config).to(torch.bfloat16)
    _, state = model(torch.zeros(1, 150, dtype=torch.int64))
    lengths = sum(8 for mixer in state if "k" in getattr(mixer, "_fields", ()))  # a cache's counter is not counted
    assert sum(x.nbytes for x in tensors(state)) - lengths == count.state_bytes(config) + count.kv_bytes(config, 150)


def test_flops_are_twice_the_matrices_and_the_mixers_own():
    config = get_preset("transformer-nano")
    matrices = 257 * 96 + 4 * (4 * 96 * 96 + 3 * 96 * 284)
    attention = 4 * 4 * 96 * (1 + 50) / 2  # each token sees half the tokens, and itself
    assert count.flops_per_token(config, 50) == 2 * matrices + attention
    window = Attention(3, 32, window=10)
    assert window.flops(10) == Attention(3, 32).flops(10)
    assert window.flops(50) == pytest.approx(4 * 96 * (sum(range(1, 11)) + 40 * 10) / 50)


@pytest.mark.parametrize(
    ("name", "nearest"), [("gdn-1.3B", "gdn-1.3b"), ("gdn_tiny", "gdn-tiny"), ("gdnh2-400m", "gdn-h2")]
)
def test_unknown_preset_is_an_error_with_the_nearest_names(name, nearest):
    with pytest.raises(ValueError, match=f"preset is '{name}', expected perhaps .*{nearest}"):
        get_preset(name)


def test_preset_like_no_other_is_told_some():
    with pytest.raises(ValueError, match=r"expected one of retnet-1\.3b, .*…"):
        get_preset("?")
