"""Models of ours as ONNX: in ONNX Runtime, and in the standard's own reference, they say what ours say."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from budget import relative_error

from gated_deltanet import CausalLM, cli, get_preset, load, save
from gated_deltanet.data.tokenizer import byte_tokenizer
from gated_deltanet.interop.folder import quantise
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
from gated_deltanet.ops import KVCache

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
from onnx.reference import ReferenceEvaluator  # noqa: E402

from gated_deltanet.interop.onnx import to_onnx  # noqa: E402

GDN, SWA = GatedDeltaNet(3, 8, 10), Attention(4, 6, 2, window=7)
MIXERS = {
    "gdn": (GDN,),
    "h1": (GDN, SWA),
    "h2": (Mamba2(3, 8, 10, conv_size=3), GDN, SWA),
    "qwen35": (GatedDeltaNet(2, 8, 8, n_v_heads=4), Attention(4, 8, 2, rope_dims=4, qk_norm="head", gate=True)),
    "olmo": (GatedDeltaNet(3, 8, 8, out_eps=1e-3, beta_max=2.0), Attention(3, 8, qk_norm="all", post_norm=True)),
    "transformer": (Attention(3, 8), Attention(3, 8, 1, rope_theta=None)),
    "windows": (Attention(3, 8, window=5), Attention(3, 8), Attention(2, 8, window=13)),
    "delta product": (GatedDeltaNet(2, 8, 6, n_v_heads=4, n_h=3), GatedDeltaNet(2, 8, 6, n_h=2, decay=False)),
    "no conv": (GatedDeltaNet(3, 8, 6, conv_size=None, feature_map="elu+1", qk_norm="l1", gate=False),),
    "bare": (GatedDeltaNet(3, 8, 6, conv_size=1, feature_map="relu", out_norm=False, beta_bias=True),),
    "deltanet": (DeltaNet(3, 8, 6),),
    "longhorn": (Longhorn(3, 8, 6),),
    "linear attention": (LinearAttention(3, 8, 6),),
    "retnet": (RetNet(3, 8, 6),),
    "hgrn2": (HGRN2(3, 8, 6),),
    "mamba2": (Mamba2(6, 8, 4, n_groups=3),),
    "mamba": (Mamba(d_inner=20, dt_rank=3, d_state=5),),
}
TOKENS = torch.randint(31, (2, 19), generator=torch.Generator().manual_seed(0))
EPS = torch.finfo(torch.float32).eps


@cache
def model(name: str, dtype: torch.dtype = torch.float32) -> CausalLM:
    torch.manual_seed(0)
    d_ff = 0 if name in ("mamba", "mamba2") else 20
    config = ModelConfig(24, 3, MIXERS[name], d_ff, 31, tied=name != "olmo", norm_eps=1e-4)
    found = CausalLM(config).eval().requires_grad_(False)
    for x in found.parameters():
        x += 0.2 * torch.randn_like(x)
    return found.to(dtype)


def written(name: str, folder, operators: str):
    save(model(name), folder / "ours")
    to_onnx(folder / "ours", folder / "onnx", operators=operators)
    return folder / "onnx" / "model.onnx"


class Runtime:
    """ONNX Runtime, or the standard's reference, as a function of tokens and state."""

    def __init__(self, file, reference: bool = False):
        self.model = onnx.load(file)
        onnx.checker.check_model(file, full_check=True)
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        self.session = ReferenceEvaluator(self.model) if reference else onnxruntime.InferenceSession(file, options)

    def empty(self, batch: int) -> dict[str, torch.Tensor]:
        kinds = {onnx.TensorProto.FLOAT: torch.float32, onnx.TensorProto.INT64: torch.int64}
        types = {x.name: x.type.tensor_type for x in self.model.graph.input if x.name != "tokens"}
        sizes = {"": None, "batch": batch}  # of named axes; the others, of keys and values, are of no token
        shapes = {n: [sizes.get(d.dim_param, 0) or d.dim_value for d in t.shape.dim] for n, t in types.items()}
        return {name: torch.zeros(shape, dtype=kinds[types[name].elem_type]) for name, shape in shapes.items()}

    def __call__(self, tokens, state=None):
        inputs = {"tokens": tokens} | (self.empty(len(tokens)) if state is None else state)
        names = [x.name for x in self.model.graph.output]
        found = self.session.run(names, {name: x.numpy() for name, x in inputs.items()})
        found = {name.replace("present.", "past."): torch.from_numpy(x) for name, x in zip(names, found, strict=True)}
        return found.pop("logits"), found


def as_onnx(state) -> dict[str, torch.Tensor]:
    """Our state by the names it has there, keys and values oldest first."""
    found = {}
    for i, layer in enumerate(state):
        values = {name: x for name, x in layer._asdict().items() if x is not None}
        if isinstance(layer, KVCache):
            (n,), W = {*layer.length.tolist()}, layer.k.shape[1]
            slots = [t % W for t in range(max(0, n - W), n)]
            values |= {name: values[name][:, slots] for name in "kv"}
        if "length" in values:
            found["past.length"] = values.pop("length")
        found |= {f"past.{i}.{name}": x for name, x in values.items()}
    return found


def results(name: str, tokens, dtype=torch.float32) -> dict[str, torch.Tensor]:
    logits, state = model(name, dtype)(tokens)
    return {"logits": logits} | as_onnx(state)


def assert_as_ours(name: str, found, tokens=TOKENS) -> None:
    """Logits and states within the budget, of float64."""
    (logits, state), ours, oracle = found, results(name, tokens), results(name, tokens, torch.float64)
    if "past.length" not in state:
        oracle.pop("past.length", None)  # who turns nothing to its position counts no tokens
    found = {"logits": logits} | state
    assert {key: x.shape for key, x in found.items()} == {key: x.shape for key, x in oracle.items()}
    for key, exact in oracle.items():
        if exact.numel():
            budget = max(4 * relative_error(ours[key], exact), 8 * EPS)
            assert relative_error(found[key], exact) <= budget, key


@pytest.mark.parametrize("operators", ["onnxruntime", "opset23"])
@pytest.mark.parametrize("name", MIXERS)
def test_a_prompt_and_tokens_after_it_are_as_ours(tmp_path, name, operators):
    run = Runtime(written(name, tmp_path, operators))
    assert_as_ours(name, run(TOKENS))
    first, state = run(TOKENS[:, :11])
    second, state = run(TOKENS[:, 11:18], state)
    third, state = run(TOKENS[:, 18:], state)
    assert_as_ours(name, (torch.cat([first, second, third], 1), state))
    one = TOKENS[:1, :1]
    assert_as_ours(name, run(one), one)


def test_our_own_state_goes_on_there(tmp_path):
    run = Runtime(written("h1", tmp_path, "onnxruntime"))
    before = as_onnx(model("h1")(TOKENS[:, :18])[1])
    logits, _ = run(TOKENS[:, 18:], before)
    oracle = results("h1", TOKENS, torch.float64)["logits"][:, 18:]
    ours = results("h1", TOKENS)["logits"][:, 18:]
    assert relative_error(logits, oracle) <= max(4 * relative_error(ours, oracle), 8 * EPS)


@pytest.mark.parametrize("name", [name for name in MIXERS if name != "mamba"])  # whose Scan is not along axis 0
def test_opset_27_is_what_its_reference_computes(tmp_path, name):
    run = Runtime(written(name, tmp_path, "opset27"), reference=True)
    _, state = run(TOKENS[:, :11])
    logits, state = run(TOKENS[:, 11:], state)
    whole = run(TOKENS)
    assert_as_ours(name, whole)
    assert_as_ours(name, (torch.cat([whole[0][:, :11], logits], 1), state))


@pytest.mark.parametrize("name", ["h2", "mamba"])
def test_opset_27_in_onnx_runtime(tmp_path, name, monkeypatch):
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")  # 1.31 takes it for unreleased
    assert_as_ours(name, Runtime(written(name, tmp_path, "opset27"))(TOKENS))


def test_the_rule_is_one_operator(tmp_path):
    kinds = {}
    for operators in ("onnxruntime", "opset27", "opset23"):
        nodes = onnx.load(written("h1", tmp_path / operators, operators), load_external_data=False).graph.node
        kinds[operators] = {(node.op_type, node.domain) for node in nodes}
    assert {("LinearAttention", "com.microsoft"), ("CausalConvWithState", "com.microsoft")} <= kinds["onnxruntime"]
    assert {("LinearAttention", ""), ("CausalConvWithState", "")} <= kinds["opset27"]
    assert ("Scan", "") in kinds["opset23"] - kinds["opset27"]
    assert {domain for _, domain in kinds["opset23"]} == {""}


def test_bfloat16_weights_are_written_in_float32(tmp_path):
    save(model("h1", torch.bfloat16), tmp_path / "ours")
    to_onnx(tmp_path / "ours", tmp_path / "onnx")
    logits, _ = Runtime(tmp_path / "onnx" / "model.onnx")(TOKENS)
    expected, _ = load(tmp_path / "ours").float().requires_grad_(False)(TOKENS)
    assert relative_error(logits, expected) < 1e-5


def test_the_command_writes_a_folder_with_the_tokenizer(tmp_path, capsys):
    save(CausalLM(replace(get_preset("gdn-nano"), n_layers=1)), tmp_path / "ours", byte_tokenizer())
    cli.main(["convert", str(tmp_path / "ours"), str(tmp_path / "onnx"), "--to", "onnx"])
    assert "1 layers of GatedDeltaNet, 96 wide" in capsys.readouterr().out
    names = {"model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert {file.name for file in (tmp_path / "onnx").iterdir()} == names


def test_what_cannot_be_written_is_told_and_leaves_nothing_behind(tmp_path, capsys, monkeypatch):
    ours = tmp_path / "ours"
    save(model("gdn"), ours)
    quantise(ours, tmp_path / "int8", "int8")
    (tmp_path / "empty").mkdir()
    before = {path.name for path in tmp_path.iterdir()}

    def refused(source, out="onnx", to="onnx") -> str:
        assert cli.main(["convert", str(tmp_path / source), str(tmp_path / out), "--to", to]) == 2
        assert {path.name for path in tmp_path.iterdir()} == before
        (message,) = capsys.readouterr().err.splitlines()
        return message

    assert "exists, expected a name that is free" in refused("ours", out="int8")
    assert "no config.json in" in refused("empty")
    assert "expected F64, F32, F16, BF16" in refused("int8")
    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: 26)
    assert "has opset 26, expected 27: pip install -U onnx" in refused("ours", to="onnx-opset27")
    monkeypatch.setattr("gated_deltanet.cli.convert.find_spec", lambda name: None)
    assert "--to onnx needs onnx: pip install 'gated-deltanet[onnx]'" in refused("ours")
    with pytest.raises(ValueError, match="operators is 'opset-9', expected perhaps opset27"):
        to_onnx(ours, tmp_path / "onnx", operators="opset-9")
