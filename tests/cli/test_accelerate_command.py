"""`gdn accelerate`, and what `gdn doctor` says of it."""

import json

import pytest

import gated_deltanet
from gated_deltanet import cli

pytest.importorskip("transformers")

from gated_deltanet.interop.transformers import survey

FOUND = [
    "transformers.models.olmo_hybrid.modeling_olmo_hybrid",
    "transformers.models.kimi_linear.modeling_kimi_linear",
]


def test_every_delta_rule_is_found_by_what_its_module_defines():
    found = {name.split(".")[2] for name in survey.modules_with_delta_rules()}
    assert {"qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo_hybrid", "kimi_linear"} <= found
    assert "llama" not in found


def test_table_and_json_tell_what_becomes_what_and_what_stays(capsys, monkeypatch):
    monkeypatch.setattr(survey, "modules_with_delta_rules", lambda: FOUND)
    assert cli.main(["accelerate", "--json"]) is None
    rows = json.loads(capsys.readouterr().out)
    becomes = {row["name"]: row["becomes"] for row in rows}
    assert becomes["torch_chunk_gated_delta_rule"] == "gated_delta_rule"
    assert becomes["causal_conv1d_update"] == "short_conv"
    assert becomes["OlmoHybridRMSNormGated"] == "gated_rms_norm"
    assert [row["name"] for row in rows if row["stays"]] == ["chunk_kimi_delta_attention"]
    cli.main(["accelerate"])
    out = capsys.readouterr().out
    assert "olmo_hybrid" in out
    assert "stays" in out


def test_doctor_says_whether_it_is_in_force(capsys):
    cli.main(["doctor"])
    assert "no: gated_deltanet.accelerate_transformers()" in " ".join(capsys.readouterr().out.split())
    with gated_deltanet.accelerate_transformers():
        cli.main(["doctor", "--json"])
        assert isinstance(json.loads(capsys.readouterr().out)["accelerated"], list)
        cli.main(["doctor"])
        assert "and what is imported later" in " ".join(capsys.readouterr().out.split())
