from dataclasses import replace

import pytest
import torch

from gated_deltanet.models import CausalLM, get_preset
from gated_deltanet.train.recipes import resolve
from gated_deltanet.train.step import decays, learning_rate, make_optimizer

PAPER = resolve(None, "paper-1.3b")


@pytest.mark.parametrize(
    ("tokens", "share"),
    [(0, 0), (10**9 // 4, 0.25), (10**9, 1), (50_500_000_000, 0.55), (100 * 10**9, 0.1), (101 * 10**9, 0.1)],
)
def test_learning_rate_rises_in_a_line_and_falls_in_a_cosine_to_a_tenth(tokens, share):
    assert learning_rate(PAPER, tokens) == pytest.approx(share * 4e-4)


def test_learning_rate_without_warm_up_starts_at_the_peak():
    recipe = resolve("gdn-nano", None, {"warmup_tokens": 0, "peak_lr": 1.0})
    assert learning_rate(recipe, 0) == 1


@pytest.mark.parametrize("preset", ["gdn-nano", "samba-nano", "gdn-h2-nano", "hgrn2-nano", "longhorn-nano"])
def test_matrices_decay_and_nothing_else(preset):
    with torch.device("meta"):
        named = dict(CausalLM(get_preset(preset)).named_parameters())
    free = {name.rpartition(".")[2] for name, p in named.items() if not decays(name, p)}
    assert free <= {"weight", "bias", "A_log", "dt_bias", "D", "lower_bound"}
    for name, parameter in named.items():
        is_matrix = name.endswith(("proj.weight", "conv.weight", "embedding.weight", "head.weight"))
        assert decays(name, parameter) == is_matrix, name


def test_every_parameter_is_in_one_group():
    model = CausalLM(get_preset("samba-nano"))
    decayed, others = make_optimizer(model, PAPER).param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0)
    assert decayed["betas"] == others["betas"] == (0.9, 0.95)
    ids = [id(p) for group in (decayed, others) for p in group["params"]]
    assert sorted(ids) == sorted(map(id, model.parameters()))


def test_every_parameter_decays_if_asked_as_in_the_official_code():
    model = CausalLM(get_preset("samba-nano"))
    decayed, others = make_optimizer(model, replace(PAPER, decay_all=True)).param_groups
    assert (len(decayed["params"]), others["params"]) == (len(list(model.parameters())), [])
