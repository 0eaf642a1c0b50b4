import json
from dataclasses import fields, replace

import pytest

from gated_deltanet import ModelConfig
from gated_deltanet.layers import MIXERS, Attention, GatedDeltaNet
from gated_deltanet.models.presets import PRESETS

BASE = ModelConfig(12, 2, (GatedDeltaNet(1, 4, 6), Attention(2, 6, window=5)), 16, 50)


@pytest.mark.parametrize("config", [BASE, *PRESETS.values()], ids=["base", *PRESETS])
def test_config_survives_json(config):
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_every_mixer_can_be_named():
    assert {type(mixer) for config in PRESETS.values() for mixer in config.mixers} == set(MIXERS.values())


def test_mixers_are_tiled_over_the_layers():
    config = replace(BASE, n_layers=5)
    assert [type(config.mixer(i)).__name__ for i in range(5)] == ["GatedDeltaNet", "Attention"] * 2 + ["GatedDeltaNet"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"d_modle": 12}, "ModelConfig: a field is 'd_modle', expected perhaps d_model"),
        ({"d_model": 0}, "ModelConfig: d_model is 0, expected a whole number, at least 1"),
        ({"d_model": "12"}, "d_model is '12', expected a whole number"),
        ({"d_ff": -1}, "d_ff is -1, expected a whole number, at least 0"),
        ({"tied": 1}, "tied is 1, expected True or False"),
        ({"norm_eps": 0}, "norm_eps is 0, expected more than 0"),
        ({"n_layers": 1}, "mixers holds 2, expected at most one for each of the 1 layers"),
        ({"mixers": []}, r"mixers is \(\), expected a tuple of GatedDeltaNet"),
        ({"mixers": [{"mixer": ["Mamba"]}]}, r"mixer is \[.Mamba.\], expected perhaps Mamba"),
        (
            {"mixers": [{"mixer": "GatedDeltaNt"}]},
            "mixer is 'GatedDeltaNt', expected perhaps GatedDeltaNet or DeltaNet",
        ),
        ({"mixers": [{"mixer": "Attention", "n_heads": 2}]}, "Attention: d_head is missing, expected all of n_heads"),
        (
            {"mixers": [{"mixer": "Attention", "n_heads": 2, "d_head": 6, "windows": 3}]},
            "Attention: a field is 'windows', expected perhaps window",
        ),
    ],
)
def test_wrong_field_is_named_with_what_was_found_and_expected(values, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(BASE.to_dict() | values)


def test_missing_field_is_named():
    values = BASE.to_dict()
    del values["d_model"]
    with pytest.raises(ValueError, match="ModelConfig: d_model is missing"):
        ModelConfig.from_dict(values)


def test_configs_are_frozen_and_hashable():
    assert len({BASE, replace(BASE), replace(BASE, d_ff=20)}) == 2
    assert all(field.name in BASE.to_dict() for field in fields(ModelConfig))
