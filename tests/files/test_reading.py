from dataclasses import dataclass
from typing import TypedDict

import pytest
import torch
from safetensors.torch import load_file, save_file

from gated_deltanet.files import read_json, read_lines, read_tensors, read_text, read_toml


class Shard(TypedDict):
    file: str
    size: int


@dataclass(frozen=True)
class Told:
    shards: list[Shard]
    norms: tuple[float, ...]
    seed: int | None = None


GOOD = '{"shards": [{"file": "a", "size": 3, "more": []}], "norms": [1, 2.5], "seed": null}'


def test_json_is_read_as_a_dataclass(tmp_path):
    (tmp_path / "a.json").write_text(GOOD)
    assert read_json(tmp_path / "a.json", Told) == Told([{"file": "a", "size": 3, "more": []}], (1.0, 2.5))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"size": 3', '"size": 3.5', r"a.json: shards\[0\].size is 3.5, expected a whole number"),
        ('"size": 3', '"size": true', r"shards\[0\].size is True, expected a whole number"),
        ('"size": 3, ', "", r"shards\[0\].size is missing, expected all of file, size"),
        ("[1, 2.5]", "{}", "norms is {}, expected a list"),
        ("[1, 2.5]", '["a"]', r"norms\[0\] is 'a', expected a number"),
        ('"seed": null', '"seed": "a"', "seed is 'a', expected a whole number or null"),
        ('"seed": null', '"seeds": 1', "seed is missing, expected all of shards, norms, seed"),
        ('"seed": null', '"seed": 1, "b": 1', "b is unknown, expected only shards, norms, seed"),
        ('"seed": null', '"seed": 1, "seed": 1', "the name 'seed' stands twice in one object"),
        ('"seed": null', f'"seed": {2**63}', "a whole number of 64 bits, expected at most 64"),
        ('"seed": null', f'"seed": {"9" * 5000}', "a.json is not JSON as it should be"),
        ('"seed": null', '"seed": NaN', "it holds the number nan, expected finite ones"),
        ('"seed": null', '"seed": 1e999', "it holds the number inf, expected finite ones"),
        ('"seed": null', '"seed": "\\ud800"', "surrogates not allowed"),
        ('"seed": null', f'"seed": {"[" * 40}{"]" * 40}', "it nests more than 32 levels deep"),
        ('"seed": null', f'"seed": {"[" * 10**5}', "a.json is not JSON as it should be"),
        (GOOD, "null", "a.json: the document is None, expected an object"),
        (GOOD, "{\n\n,", "a.json is not JSON as it should be: .* line 3"),
        (GOOD, "", "a.json is not JSON as it should be"),
    ],
)
def test_json_that_is_not_as_it_should_be_is_told_with_the_place(old, new, message, tmp_path):
    (tmp_path / "a.json").write_text(GOOD.replace(old, new))
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "a.json", Told)


def test_what_others_write_is_read_where_that_is_asked_for(tmp_path):
    (tmp_path / "a.json").write_text(f'{{"a": Infinity, "a": -Infinity, "b": {10**30}}}')
    assert read_json(tmp_path / "a.json", strict=False) == {"a": float("-inf"), "b": 10**30}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = \n", "line 1"),
        ("a = inf", "finite"),
        (f"a = 0x{'f' * 9999}", "bits"),
        (f"a = {'[' * 9999}", "is not TOML"),
    ],
)
def test_toml_that_is_not_as_it_should_be_is_told(text, message, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ValueError, match=rf"a\.toml is not TOML as it should be.*{message}|{message}"):
        read_toml(tmp_path / "a.toml")


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n\xffthree")
    with pytest.raises(ValueError, match=r"a\.txt, line 3 is not UTF-8"):
        read_text(tmp_path / "a.txt")


@pytest.mark.parametrize("end", [b"", b"\n", b'{"step": 4', b'{"step": 4, "\xc3', b"\n\n  \n"])
def test_a_last_line_cut_short_is_passed_over_and_another_told_with_its_number(end, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"step": 3}\n' + end)
    assert list(read_lines(file)) == [(f"{file}, line 1", {"step": 3})]
    file.write_bytes(b'{"step": 3}\n{"step\n{"step": 4}\n' + end)
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2 is not JSON"):
        list(read_lines(file))


def test_tensors_are_in_torchs_memory_wherever_they_are_in_the_file(tmp_path):
    written = {f"x{i}": torch.arange(float(i)) for i in range(1, 40, 3)} | {"none": torch.empty(0, 3)}
    save_file(written, tmp_path / "a.safetensors", {"a": "b"})
    metadata, found = read_tensors(tmp_path / "a.safetensors")
    assert metadata == {"a": "b"}
    assert any(x.data_ptr() % 64 for x in load_file(tmp_path / "a.safetensors").values())  # why it is asked
    assert all(x.data_ptr() % 64 == 0 and torch.equal(x, written[name]) for name, x in found.items())


def test_safetensors_that_are_not_whole_or_not_there_are_named(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 99)
    with pytest.raises(ValueError, match=r"a\.safetensors is not a whole safetensors file"):
        read_tensors(tmp_path / "a.safetensors")
    for missing in (tmp_path, tmp_path / "b"):
        with pytest.raises(FileNotFoundError, match=f"there is no file {missing}"):
            read_tensors(missing)
