import json

import pytest

from gated_deltanet import cli
from gated_deltanet.models.presets import MIXERS, PRESETS


def test_json_lists_every_preset_with_its_parameters(capsys):
    assert cli.main(["presets", "--json"]) is None
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == set(PRESETS)
    by_name = {row["name"]: row for row in rows}
    assert by_name["gdn-official-0.4b"]["parameters"] == 516_837_929
    assert by_name["transformer-1.3b"]["kv_bytes_32k"] == 8 * by_name["transformer-1.3b"]["kv_bytes_4k"]
    assert by_name["gdn-1.3b"]["kv_bytes_32k"] == 0


def test_table_of_one_size_names_each_architecture(capsys):
    cli.main(["presets", "--size", "nano"])
    out = capsys.readouterr().out
    assert all(f"{name}-nano" in out for name in MIXERS)
    assert "gdn-tiny " not in out


@pytest.mark.parametrize(("size", "nearest"), [("tinny", "tiny"), ("7b", "one of 1.3b, 400m")])
def test_unknown_size_is_an_error_with_the_nearest_names(size, nearest, capsys):
    assert cli.main(["presets", "--size", size]) == 2
    assert nearest in capsys.readouterr().err


def test_numbers_end_where_their_column_does_and_sizes_are_apart(capsys):
    cli.main(["presets"])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    head, *rows = [line for line in lines if line.startswith(" ")]
    assert {len(row) for row in rows} == {len(head)}
    assert "" in lines[lines.index(rows[0]) : lines.index(rows[-1])]
    groups = "\n".join(lines).split("\n\n")
    assert any("gdn-tiny" in group and "mamba-tiny" in group and "gdn-nano" not in group for group in groups)
