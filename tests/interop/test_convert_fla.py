"""Checkpoints of flash-linear-attention as ours and back, on small ones made up here."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import fla_layers
import pytest
import torch
from budget import relative_error
from safetensors.torch import load_file, save_file

from gated_deltanet import CausalLM, cli, load, save
from gated_deltanet.interop.convert import from_fla, to_fla
from gated_deltanet.layers import (
    HGRN2,
    Attention,
    DeltaNet,
    GatedDeltaNet,
    LinearAttention,
    Longhorn,
    Mamba,
    Mamba2,
    RetNet,
)
from gated_deltanet.models.config import ModelConfig

D, FF, VOCAB = 24, 20, 31
config_of = partial(ModelConfig, d_model=D, n_layers=3, d_ff=FF, vocab_size=VOCAB, tied=False, norm_eps=1e-6)
MODELS = {
    "gated_deltanet": config_of(mixers=(GatedDeltaNet(3, 6, 12),)),
    "grouped heads, no convolution, no gate": config_of(
        mixers=(GatedDeltaNet(2, 6, 10, n_v_heads=4, conv_size=None, gate=False, beta_max=2.0),), tied=True
    ),
    "delta_net": config_of(mixers=(DeltaNet(2, 6, 10, conv_size=3),)),
    "delta_net with a gate": config_of(
        mixers=(GatedDeltaNet(2, 6, 10, decay=False, gate=True, feature_map="elu+1", qk_norm="l1"),)
    ),
    "retnet": config_of(mixers=(RetNet(2, 8, 10),)),
    "hgrn2": config_of(mixers=(HGRN2(4, 6, 6),)),
    "mamba2": config_of(mixers=(Mamba2(6, 10, 8, n_groups=2),), d_ff=0, norm_eps=1e-5),
    "transformer": config_of(mixers=(Attention(4, 6, n_kv_heads=2, window=5, rope_theta=500.0),), tied=True),
    "hybrid": config_of(mixers=(GatedDeltaNet(3, 6, 12), Attention(4, 6, window=7)), n_layers=5),
    "two windows": config_of(
        mixers=(DeltaNet(2, 6, 10), Attention(4, 6, window=7), Attention(2, 12, n_kv_heads=1)), n_layers=6
    ),
    "one layer": config_of(mixers=(HGRN2(4, 6, 6),), n_layers=1),
    "gated_deltaproduct": config_of(mixers=(GatedDeltaNet(3, 6, 12, n_h=2, beta_max=2.0),)),
    "product without gates": config_of(
        mixers=(GatedDeltaNet(2, 6, 9, n_h=3, conv_size=None, decay=False, gate=False),)
    ),
    "linear_attn": config_of(mixers=(LinearAttention(3, 6, 10),)),
    "linear hybrid": config_of(mixers=(LinearAttention(3, 6, 10, feature_map="relu"), Attention(4, 6, window=7))),
    "mamba": config_of(mixers=(Mamba(48, 3, 5),), d_ff=0, tied=True),
    "samba": config_of(mixers=(Mamba(48, 3, 5, conv_size=3), Attention(4, 6, window=7)), d_ff=256),
    "samba without attention": config_of(mixers=(Mamba(24, 2, 5),), d_ff=512),
}
NEW = [*MODELS][[*MODELS].index("gated_deltaproduct") :]
OLD = [name for name in MODELS if name not in ("grouped heads, no convolution, no gate", "two windows", *NEW)]


def saved(config: ModelConfig, folder: Path, seed=0) -> CausalLM:
    """A model whose parameters are all different, saved. HGRN2's bounds rise."""
    torch.manual_seed(seed)
    model = CausalLM(config)
    for name, x in model.named_parameters():
        x.data += (0.1 if "bound" in name else 0.3) * torch.randn_like(x)
    save(model, folder)
    return model


def fla_checkpoint(folder: Path, old=False) -> dict[str, torch.Tensor]:
    """A Gated DeltaNet as FLA saves it, 3 heads of 6 and 12; old: as of December 2024."""
    torch.manual_seed(1)
    keys, values, heads = 18, 36, 3
    layer = {
        "attn_norm.weight": (D,), "mlp_norm.weight": (D,), "attn.A_log": (heads,), "attn.dt_bias": (heads,),
        "attn.q_proj.weight": (keys, D), "attn.k_proj.weight": (keys, D), "attn.v_proj.weight": (values, D),
        "attn.a_proj.weight": (heads, D), "attn.b_proj.weight": (heads, D), "attn.q_conv1d.weight": (keys, 1, 4),
        "attn.k_conv1d.weight": (keys, 1, 4), "attn.v_conv1d.weight": (values, 1, 4), "attn.g_proj.weight": (values, D),
        "attn.o_norm.weight": (12,), "attn.o_proj.weight": (D, values), "mlp.down_proj.weight": (D, FF),
    }  # fmt: skip
    layer |= {"mlp.gate_proj.weight": (2 * FF, D), "attn.D": (heads,)} if old else {}
    layer |= {} if old else {"mlp.gate_proj.weight": (FF, D), "mlp.up_proj.weight": (FF, D)}
    shapes = {"model.embeddings.weight": (VOCAB, D), "model.norm.weight": (D,), "lm_head.weight": (VOCAB, D)}
    shapes |= {f"model.layers.{i}.{name}": shape for i in range(2) for name, shape in layer.items()}
    tensors = {name: 0.4 * torch.randn(shape) for name, shape in shapes.items()}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "gated_deltanet", "hidden_size": 1, "num_heads": 99, "head_dim": 99, "norm_eps": 1e-6}
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


@pytest.mark.parametrize("old", [False, True])
def test_a_checkpoint_of_fla_gives_its_logits(tmp_path, old):
    tensors = fla_checkpoint(tmp_path / "fla", old)
    config = from_fla(tmp_path / "fla", tmp_path / "ours")
    assert config == replace(MODELS["gated_deltanet"], n_layers=2)  # by the shapes: its config.json says other sizes
    values = {"model_type": "gated_deltanet", "num_heads": 3, "norm_eps": 1e-6, "tie_word_embeddings": False}
    assert_same_logits(load(tmp_path / "ours"), tensors, values)


@pytest.mark.parametrize("layout", ["current", "2024-12"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "mamba2"])
def test_a_model_gives_the_same_logits_by_flas_names_and_functions(tmp_path, name, layout):
    if layout != "current" and name not in OLD:
        pytest.skip("FLA had no such model in December 2024")
    model = saved(MODELS[name], tmp_path / "ours")
    to_fla(tmp_path / "ours", tmp_path / "fla", layout=layout)
    values = json.loads((tmp_path / "fla" / "config.json").read_text())
    assert_same_logits(model, load_file(tmp_path / "fla" / "model.safetensors"), values)


@torch.no_grad()
def assert_same_logits(model, tensors, values):
    tokens = torch.randint(VOCAB, (2, 40), generator=torch.Generator().manual_seed(3))
    assert relative_error(model(tokens)[0], fla_layers.logits(tensors, values, tokens)) < 1e-5


@pytest.mark.parametrize("layout", ["current", "2024-12"])
@pytest.mark.parametrize("name", MODELS)
def test_to_fla_and_back_is_the_same_model(tmp_path, name, layout):
    model = saved(MODELS[name], tmp_path / "ours")
    if layout != "current" and name not in OLD:
        with pytest.raises(ValueError, match=r"not (as )?in December 2024"):
            to_fla(tmp_path / "ours", tmp_path / "fla", layout=layout)
        assert not (tmp_path / "fla").exists()
        return
    to_fla(tmp_path / "ours", tmp_path / "fla", layout=layout, shard_bytes=9000)
    assert (tmp_path / "fla" / "model.safetensors.index.json").exists() or name == "one layer"
    assert from_fla(tmp_path / "fla", tmp_path / "back") == model.config
    again = load(tmp_path / "back").state_dict()
    for tensor, x in model.state_dict().items():
        if "lower_bound" in tensor or (isinstance(model.config.mixers[0], HGRN2) and "v_proj" in tensor):
            assert torch.allclose(again[tensor], x, rtol=1e-6, atol=1e-5), tensor
        else:
            assert torch.equal(again[tensor], x), tensor
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "fla", "ours"]


@pytest.mark.parametrize(
    ("name", "layer", "others"),
    [
        ("gated_deltanet", "attn.A_log attn.a_proj.weight attn.b_proj.weight attn.dt_bias attn.g_proj.weight"
         " attn.k_conv1d.weight attn.k_proj.weight attn.o_norm.weight attn.o_proj.weight attn.q_conv1d.weight"
         " attn.q_proj.weight attn.v_conv1d.weight attn.v_proj.weight", ""),
        ("delta_net", "attn.b_proj.weight attn.k_conv1d.weight attn.k_proj.weight attn.o_norm.weight attn.o_proj.weight"
         " attn.q_conv1d.weight attn.q_proj.weight attn.v_conv1d.weight attn.v_proj.weight", ""),
        ("retnet", "attn.g_norm_swish_gate.weight attn.g_proj.weight attn.k_proj.weight attn.o_proj.weight"
         " attn.q_proj.weight attn.v_proj.weight", ""),
        ("hgrn2", "attn.f_proj.weight attn.g_norm.weight attn.i_proj.weight attn.o_proj.weight attn.q_proj.weight",
         "model.lower_bounds"),
        ("transformer", "attn.k_proj.weight attn.o_proj.weight attn.q_proj.weight attn.v_proj.weight", ""),
    ],
)  # fmt: skip
def test_tensors_have_flas_names(tmp_path, name, layer, others):
    config = replace(MODELS[name], tied=False)
    saved(config, tmp_path / "ours")
    to_fla(tmp_path / "ours", tmp_path / "fla")
    block = ["attn_norm", "mlp_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    within = [*layer.split(), *(f"{part}.weight" for part in block)]
    expected = {f"model.layers.{i}.{part}" for i in range(3) for part in within} | set(others.split())
    expected |= {"model.embeddings.weight", "model.norm.weight", "lm_head.weight"}
    assert load_file(tmp_path / "fla" / "model.safetensors").keys() == expected
    assert json.loads((tmp_path / "fla" / "config.json").read_text())["model_type"] == name


def test_mamba2_has_flas_names_and_no_mlp(tmp_path):
    saved(MODELS["mamba2"], tmp_path / "ours")
    to_fla(tmp_path / "ours", tmp_path / "fla")
    tensors = load_file(tmp_path / "fla" / "model.safetensors")
    mixer = [
        "A_log",
        "D",
        "dt_bias",
        "conv1d.weight",
        "conv1d.bias",
        "in_proj.weight",
        "norm.weight",
        "out_proj.weight",
    ]
    expected = {f"backbone.layers.{i}.mixer.{part}" for i in range(3) for part in mixer}
    expected |= {f"backbone.layers.{i}.norm.weight" for i in range(3)}
    assert tensors.keys() == expected | {"backbone.embeddings.weight", "backbone.norm_f.weight", "lm_head.weight"}
    assert tensors["backbone.layers.0.mixer.conv1d.weight"].shape == (48 + 2 * 20, 1, 4)


def test_samba_has_flas_names(tmp_path):
    saved(MODELS["samba"], tmp_path / "ours")
    to_fla(tmp_path / "ours", tmp_path / "fla")
    names = load_file(tmp_path / "fla" / "model.safetensors").keys()
    values = json.loads((tmp_path / "fla" / "config.json").read_text())
    assert (values["time_step_rank"], values["expand"], values["hidden_ratio"]) == (3, 2, 16)
    assert "intermediate_size" not in values  # which is Mamba's there
    projections = [f"{x}_proj.weight" for x in ("in", "x", "dt", "out")]
    mamba = ["A_log", "D", "conv1d.bias", "conv1d.weight", "dt_proj.bias", *projections]
    attention = [f"{x}_proj.weight" for x in "kqvo"]
    for i, mixer in enumerate((mamba, attention, mamba)):
        within = {name.removeprefix("mixer.") for name in layer_names(names, i) if name.startswith("mixer.")}
        assert within == set(mixer)
        others = {"mixer_norm.weight", "mlp_norm.weight", *(f"mlp.{x}_proj.weight" for x in ("gate", "up", "down"))}
        assert {name for name in layer_names(names, i) if not name.startswith("mixer.")} == others


def layer_names(names, i):
    prefix = f"backbone.layers.{i}."
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def test_features_that_ours_do_not_have_are_told(tmp_path):
    saved(MODELS["linear_attn"], tmp_path / "ours")
    to_fla(tmp_path / "ours", tmp_path / "fla")
    for changes, message in (
        ({"feature_map": "hedgehog"}, "feature_map is 'hedgehog', expected 'elu' or 'relu'"),
        ({"feature_map": "elu", "norm_q": True}, "norm_q is True, expected False"),
    ):
        change(tmp_path / "fla", **changes)
        with pytest.raises(ValueError, match=message):
            from_fla(tmp_path / "fla", tmp_path / "back")


def test_hgrn2s_bounds_are_sums_of_a_softmax_over_the_layers(tmp_path):
    model = saved(MODELS["hgrn2"], tmp_path / "ours")
    to_fla(tmp_path / "ours", tmp_path / "fla")
    shares = load_file(tmp_path / "fla" / "model.safetensors")["model.lower_bounds"].softmax(0)
    bounds = shares.cumsum(0) - shares[0]
    for i in (1, 2):
        ours = torch.sigmoid(model.get_parameter(f"layers.{i}.mixer.lower_bound") + torch.tensor(i / (3 - i)).log())
        assert torch.allclose(bounds[i], ours, atol=1e-6)


def test_norms_inside_what_they_come_before_are_found(tmp_path):
    tensors = fla_checkpoint(tmp_path / "fla", old=True)
    inside = {"attn_norm.weight": "attn.norm.weight", "mlp_norm.weight": "mlp.norm.weight"}
    moved = {}
    for name, x in tensors.items():
        last = ".".join(name.split(".")[-2:])
        moved[name.replace(last, inside.get(last, last))] = x
    save_file(moved, tmp_path / "fla" / "model.safetensors")
    from_fla(tmp_path / "fla", tmp_path / "ours")
    assert torch.equal(
        load(tmp_path / "ours").get_parameter("layers.1.mlp_norm.weight"), tensors["model.layers.1.mlp_norm.weight"]
    )


def change(folder, **changes):
    """Other values in config.json, other tensors or none."""
    tensors = load_file(folder / "model.safetensors")
    for name, x in changes.items():
        if name in (config := json.loads((folder / "config.json").read_text())) or not isinstance(
            x, torch.Tensor | None
        ):
            (folder / "config.json").write_text(json.dumps(config | {name: x}))
        elif x is None:
            del tensors[name]
        else:
            tensors[name] = x
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.layers.1.attn.k_proj.weight": None}, r"model\.layers\.1\.attn\.k_proj\.weight is missing"),
        ({"lm_head.weight": None}, r"lm_head\.weight is missing"),
        ({"model.layers.1.attn.k_proj.bias": torch.ones(18)}, r"attn\.k_proj\.bias has no place in our model"),
        (
            {"model.layers.0.attn.v_proj.weight": torch.ones(35, D)},
            r"v_proj\.weight is \[35, 24\], expected \[36, 24\]",
        ),
        ({"model.layers.0.attn.A_log": torch.ones(4)}, r"attn\.A_log is \[4\], expected \[3\]"),
        ({"model.layers.1.attn.A_log": torch.ones(3, dtype=torch.int64)}, "A_log is I64, expected F64, F32, F16, BF16"),
        ({"model.layers.3.attn.b_proj.weight": torch.ones(3, D)}, "no `attn` of config.json names layer 2"),
        ({"model_type": "rwkv7"}, "model_type is 'rwkv7', expected one of gated_deltanet, delta_net"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'swish' or 'silu'"),
        ({"norm_eps": "small"}, "norm_eps is 'small', expected a number"),
        ({"num_v_heads": 3}, "q_proj.weight has 18 channels, expected a multiple of num_heads, which is 99"),
        (
            {"tie_word_embeddings": True},
            "lm_head.weight is not model.embeddings.weight, but tie_word_embeddings is true",
        ),
    ],
)
def test_a_wrong_checkpoint_is_told_and_leaves_nothing_behind(tmp_path, changes, message):
    fla_checkpoint(tmp_path / "fla")
    change(tmp_path / "fla", **changes)
    with pytest.raises(ValueError, match=message):
        from_fla(tmp_path / "fla", tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["fla"]


def test_a_partial_checkpoint_leaves_nothing_behind(tmp_path):
    saved(MODELS["gated_deltanet"], tmp_path / "ours")
    to_fla(tmp_path / "ours", tmp_path / "fla", shard_bytes=9000)
    shard = sorted((tmp_path / "fla").glob("model-*.safetensors"))[1]
    content = shard.read_bytes()
    shard.write_bytes(content[:-10])
    with pytest.raises(ValueError, match="is not a whole safetensors file"):
        from_fla(tmp_path / "fla", tmp_path / "back")
    index = tmp_path / "fla" / "model.safetensors.index.json"
    whole = index.read_text()
    for wrong, message in (("{}", "weight_map is None"), (whole.replace(shard.name, "../x"), "in its own folder")):
        index.write_text(wrong)
        with pytest.raises(ValueError, match=message):
            from_fla(tmp_path / "fla", tmp_path / "back")
    index.write_text(whole)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=f"there is no file .*{shard.name}"):
        from_fla(tmp_path / "fla", tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fla", "ours"]


def test_a_folder_that_is_there_is_not_touched(tmp_path):
    fla_checkpoint(tmp_path / "fla")
    (tmp_path / "ours").mkdir()
    with pytest.raises(FileExistsError, match="ours exists, expected a name that is free"):
        from_fla(tmp_path / "fla", tmp_path / "ours")
    assert not list((tmp_path / "ours").iterdir())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (config_of(mixers=(Longhorn(3, 6, 12),)), "FLA has no Longhorn that we convert"),
        (config_of(mixers=(GatedDeltaNet(3, 6, 12, 6, n_h=2),)), "GatedDeltaNet: n_v_heads is 6, FLA has None only"),
        (config_of(mixers=(LinearAttention(3, 6, 12, "silu"),)), "feature_map is 'silu', FLA has 'elu\\+1' only"),
        (config_of(mixers=(Mamba(48, 2),)), "d_ff is 20, FLA's samba has multiples of 256 only"),
        (config_of(mixers=(Mamba(50, 2),), d_ff=0), "Mamba is 50 wide, FLA has whole multiples of d_model, 24"),
        (config_of(mixers=(GatedDeltaNet(3, 6, 12, beta_bias=True),)), "beta_bias is True, FLA has False only"),
        (config_of(mixers=(HGRN2(4, 6, 10),)), "HGRN2: d_v is 10, FLA has 6 only"),
        (config_of(mixers=(Mamba2(6, 10, 8),)), "d_ff is 20, FLA's mamba2 has no MLP"),
        (config_of(mixers=(Mamba2(6, 10, 8), GatedDeltaNet(3, 6, 12))), "several mixers beside attention, FLA has one"),
        (config_of(mixers=(Attention(3, 6),)), "Attention: d_head is 6, FLA has 8 only"),
    ],
)
def test_what_fla_does_not_have_is_told(tmp_path, config, message):
    saved(config, tmp_path / "ours")
    with pytest.raises(ValueError, match=message):
        to_fla(tmp_path / "ours", tmp_path / "fla")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_bounds_that_fall_cannot_be_flas(tmp_path):
    model = saved(MODELS["hgrn2"], tmp_path / "before")
    model.get_parameter("layers.2.mixer.lower_bound").data[1] = -9
    save(model, tmp_path / "ours")
    with pytest.raises(ValueError, match=r"layers\.2\.mixer\.lower_bound falls below the layer before"):
        to_fla(tmp_path / "ours", tmp_path / "fla")
    assert not (tmp_path / "fla").exists()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_types_stay_and_files_are_as_safetensors_reads_them(tmp_path, dtype):
    model = saved(MODELS["gated_deltanet"], tmp_path / "whole").to(dtype)
    save(model, tmp_path / "ours")
    to_fla(tmp_path / "ours", tmp_path / "fla")
    theirs = load_file(tmp_path / "fla" / "model.safetensors")
    assert theirs["model.layers.0.attn.A_log"].dtype == torch.float32
    assert torch.equal(
        theirs["model.layers.2.mlp.down_proj.weight"], model.get_parameter("layers.2.mlp.out_proj.weight")
    )
    assert torch.equal(theirs["model.layers.2.attn.A_log"], model.get_parameter("layers.2.mixer.decay.A_log"))


@pytest.mark.parametrize("to", ["fla", "fla-2024-12"])
def test_the_command_converts_there_and_back(tmp_path, to, capsys):
    ours, theirs, back = (str(tmp_path / name) for name in ("ours", "fla", "back"))
    model = saved(MODELS["hybrid"], Path(ours))
    assert cli.main(["convert", ours, theirs, "--to", to]) is None
    assert cli.main(["convert", theirs, back]) is None
    assert "back: 5 layers of GatedDeltaNet, Attention, 24 wide" in capsys.readouterr().out
    assert load(back).config == model.config
    assert cli.main(["convert", ours, str(tmp_path / "again")]) == 2
    assert "is a model of ours already, expected another project's" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_lines_of_the_page_run_as_they_stand(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "interop-fla.md").read_text()
    _, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("checkpoints").mkdir()
    fla_checkpoint(Path("checkpoints/gated-deltanet"))
    names: dict = {}
    exec(code, names)
    assert isinstance(names["model"], CausalLM)
    assert Path("exports/gdn-fla/config.json").exists()
