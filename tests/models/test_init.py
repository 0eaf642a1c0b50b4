import torch

from gated_deltanet import CausalLM, ModelConfig
from gated_deltanet.layers import GatedDeltaNet, Mamba, Mamba2
from gated_deltanet.models.model import init_weights

CONFIG = ModelConfig(160, 6, (GatedDeltaNet(2, 60, 80), Mamba2(4, 60, 40), Mamba(200, 90)), 320, 300)


def spread(model):
    return {name: (p.mean().item(), p.std().item()) for name, p in model.named_parameters()}


def test_matrices_are_normal_and_those_that_write_to_the_stream_are_narrower():
    for name, (_, std) in spread(CausalLM(CONFIG)).items():
        if name.endswith("out_proj.weight"):
            assert abs(std / (0.02 / 12**0.5) - 1) < 0.05, name
        elif "dt_proj" in name:
            assert abs(std / (90**-0.5 / 3**0.5) - 1) < 0.05
        elif "_proj" in name or "embedding" in name:
            assert abs(std / 0.02 - 1) < 0.15, name
        elif "norm" in name or name.endswith(".D"):
            assert std == 0


def test_without_mlp_there_is_one_branch_a_layer():
    model = CausalLM(ModelConfig(160, 4, (Mamba(200, 90),), 0, 300))
    stds = [p.std().item() for name, p in model.named_parameters() if name.endswith("out_proj.weight")]
    assert len(stds) == 4
    assert all(abs(std / (0.02 / 2) - 1) < 0.05 for std in stds)


def test_model_made_on_the_meta_device_starts_like_any_other():
    with torch.device("meta"):
        model = CausalLM(CONFIG)
    model.to_empty(device="cpu")
    for p in model.parameters():
        p.data.fill_(torch.nan)
    torch.manual_seed(3)
    init_weights(model)
    torch.manual_seed(3)
    other = CausalLM(CONFIG)
    torch.manual_seed(3)
    init_weights(other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
