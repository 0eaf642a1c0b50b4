import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gated_deltanet.data import tokenizer
from gated_deltanet.data.corpus import dtype_for, is_valid, joined, tokenise
from gated_deltanet.data.prepare import prepare
from gated_deltanet.data.rows import Rows, take
from gated_deltanet.data.shards import open_corpus, read_manifest

BYTES = tokenizer.byte_tokenizer()
TEXTS = [f"document {i} " * (i % 7 + 1) for i in range(200)]


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "source.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS) + "{\n")
    return str(file)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def ready(source, out, **options):
    return prepare(source, BYTES, out, **{"valid": 0.2, "shard_bytes": 1000, **options})


def test_shards_hold_what_memory_would(source, tmp_path):
    manifest = ready(source, tmp_path / "out")
    data = tokenise(source, BYTES, valid=0.2)
    assert len(manifest["shards"]) > 5
    for split, other in (("train", data.train), ("valid", data.valid)):
        corpus = open_corpus(tmp_path / "out", split, verify=True)
        rows = [take(Rows(each, 16, seed=1), 0, 40) for each in (corpus, other)]
        assert all(torch.equal(a, b) for a, b in zip(*rows, strict=True))
        counted = {"documents": len(other), "tokens": int(other.positions.sum()), "bytes": int(other.n_bytes.sum())}
        assert manifest[split] == counted
    assert len(open_corpus(tmp_path / "out", "all")) == len(TEXTS)
    assert tokenizer.fingerprint(tokenizer.load(tmp_path / "out")) == corpus.fingerprint


def test_manifest_tells_sources_skipped_and_versions(source, tmp_path):
    manifest = ready((source, "stdlib"), tmp_path / "out", shard_bytes=2**22)
    assert manifest == read_manifest(tmp_path / "out")
    assert manifest["sources"][source]["documents"] == len(TEXTS)
    assert len(manifest["sources"]["stdlib"]["sha256"]) == 64
    assert manifest["skipped"]["malformed JSON"] == 1
    assert manifest["skipped_examples"][0] == f"{source}:201: malformed JSON"
    assert manifest["versions"].keys() == {"python", "gated-deltanet", "tokenizers", "numpy", "safetensors"}


@pytest.mark.parametrize("made", ["bytes", "bpe"])
def test_files_are_the_same_for_any_number_of_workers(made, source, tmp_path):
    used = BYTES if made == "bytes" else tokenizer.train_bpe(TEXTS, 300)
    for workers in (1, 2):
        prepare(source, used, tmp_path / str(workers), shard_bytes=1000, workers=workers)
    assert content(tmp_path / "1") == content(tmp_path / "2")


def test_progress_reaches_the_whole(source, tmp_path):
    told = []
    ready(source, tmp_path / "out", progress=lambda at, total: told.append((at, total)))
    assert told == sorted(told)
    assert told[-1] == (size := Path(source).stat().st_size, size)


KILLED = """
import time
from gated_deltanet import files
from gated_deltanet.data import tokenizer
from gated_deltanet.data.prepare import prepare
write = files.write
def slow(file, make):
    if file.suffix == ".safetensors":
        time.sleep(0.02)
        file.with_name(f".0.{file.name}").write_bytes(b"half a shard")
    write(file, make)
files.write = slow
prepare("%s", tokenizer.byte_tokenizer(), "%s", valid=0.2, shard_bytes=1000)
"""


@pytest.mark.parametrize("shards", [1, 4])
def test_killed_run_is_taken_up_where_it_stopped(shards, source, tmp_path):
    ready(source, tmp_path / "straight")
    out = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", KILLED % (source, out)])
    while len(list(out.glob("[0-9]*.safetensors"))) < shards:
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    with pytest.raises(FileNotFoundError, match=r"no manifest.json in .*killed"):
        open_corpus(out)
    before = {path: path.stat().st_mtime_ns for path in out.glob("[0-9]*.safetensors")}
    ready(source, out)
    assert content(out) == content(tmp_path / "straight")
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


@pytest.mark.parametrize("harm", ["truncated", "changed", "missing", "replaced"])
def test_damaged_shard_is_told_and_mended(harm, source, tmp_path):
    out = tmp_path / "out"
    ready(source, out)
    good, shard = content(out), out / "00002.safetensors"
    spoil(shard, harm)
    with pytest.raises((ValueError, OSError), match=r"00002.safetensors .*run the same gdn data prepare again"):
        open_corpus(out, verify=True)
    (out / "manifest.json").unlink()
    if harm == "replaced":
        with pytest.raises(ValueError, match=r"00002.safetensors was made from other texts: the source has changed"):
            ready(source, out)
        shard.unlink()
    ready(source, out)
    assert content(out) == good


def spoil(shard: Path, harm: str) -> None:
    if harm == "truncated":
        os.truncate(shard, shard.stat().st_size - 1)
    elif harm == "changed":
        whole = bytearray(shard.read_bytes())
        whole[-3] ^= 1
        shard.write_bytes(whole)
    elif harm == "missing":
        shard.unlink()
    else:
        shard.write_bytes(shard.with_name("00003.safetensors").read_bytes())


def test_changed_source_is_told(source, tmp_path):
    ready(source, tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()
    Path(source).write_text(Path(source).read_text().replace("document 3 ", "Document 3 "))
    with pytest.raises(ValueError, match=r"00000.safetensors was made from other texts: the source has changed since"):
        ready(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "begun with seed 0, not 1: choose another folder"),
        ({"valid": 0.5}, "begun with valid 0.2, not 0.5"),
        ({"valid": 1.0}, "valid is 1.0, expected a share"),
        ({"workers": 0}, "workers 0, expected 1 or more"),
        ({"shard_bytes": 0}, "shard_bytes 0 and workers 1, expected 1 or more"),
    ],
)
def test_other_settings_need_another_folder(change, message, source, tmp_path):
    ready(source, tmp_path / "out")
    with pytest.raises(ValueError, match=message):
        ready(source, tmp_path / "out", **change)


def test_finished_folder_is_left_as_it_is(source, tmp_path):
    ready(source, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.safetensors")}
    ready(source, tmp_path / "out")
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_folder_of_other_things_is_not_written_to(source, tmp_path):
    with pytest.raises(ValueError, match="holds other files, expected an empty folder"):
        ready(source, tmp_path)


def test_other_version_is_told(source, tmp_path):
    ready(source, tmp_path / "out")
    file = tmp_path / "out" / "manifest.json"
    file.write_text(file.read_text().replace('"version": 1', '"version": 2', 1))
    with pytest.raises(ValueError, match=r"manifest.json is of version 2, expected 1"):
        open_corpus(tmp_path / "out")
    file.write_text("{")
    with pytest.raises(ValueError, match=r"manifest.json is not JSON"):
        open_corpus(tmp_path / "out")


def test_full_disk_is_told_and_leaves_nothing_half_written(source, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"the disk is full, .*settings.json was not written; what is finished is kept"):
        ready(source, tmp_path / "out")
    assert content(tmp_path / "out") == {}


def test_source_without_documents_is_told(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"body": "text"}\n' * 3)
    for take_in in (lambda: tokenise(str(tmp_path / "x.jsonl"), BYTES), lambda: ready(str(tmp_path), tmp_path / "out")):
        with pytest.raises(ValueError, match=r"no documents in .*skipped: 3 no text in the field 'text'"):
            take_in()


@given(st.lists(st.text(), max_size=30), st.lists(st.text(), max_size=30), st.integers(0, 9))
def test_split_is_by_content_and_seed(texts, more, seed):
    split = {text: is_valid(text, 0.5, seed) for text in texts}
    assert all(is_valid(text, 0.5, seed) == split[text] for text in reversed([*texts, *more]) if text in split)
    assert all(is_valid(text, 0.7, seed) for text in texts if split[text])


def test_share_of_the_split_is_as_asked():
    for share in (0.0, 0.01, 0.3):
        found = np.mean([is_valid(f"text {i}", share, 0) for i in range(20_000)])
        assert abs(found - share) <= 3 * (share * (1 - share) / 20_000) ** 0.5


def test_tokens_that_do_not_fit_are_an_error():
    assert dtype_for(2**16) is np.uint16
    assert dtype_for(2**16 + 1) is np.uint32
    assert joined([np.array([65_535])], 0, 2**16).tolist() == [0, 65_535, 0]
    with pytest.raises(ValueError, match=r"expected at most 2\*\*32"):
        dtype_for(2**32 + 1)
    with pytest.raises(ValueError, match="the tokenizer gave token 300, expected less than its vocab_size of 257"):
        joined([np.array([300])], 256, 257)
