import gzip
import json
import sys
from collections import Counter

import pytest

from gated_deltanet.data import formats, sources
from gated_deltanet.data.sources import documents


def texts(source, **options) -> list[str]:
    return [each.text for each in documents(source, **options)]


@pytest.fixture
def folder(tmp_path):
    """One document in each kind of file, two in the jsonl; and what is not read."""
    (tmp_path / "b.txt").write_bytes(b"in b\r\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "z.md").write_text("in z")
    (tmp_path / "a" / "m.py").write_text("in m")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"in c"))
    (tmp_path / "d.jsonl").write_text('{"text": "in d 1", "more": "other"}\n{"text": "in d 2"}\n')
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(b'{"text": "in e"}'))
    (tmp_path / ".hidden.txt").write_text("hidden")
    return tmp_path


def test_folder_is_read_in_the_order_of_its_paths(folder):
    assert texts(str(folder)) == ["in m", "in z", "in b\r\n", "in c", "in d 1", "in d 2", "in e"]


def test_glob_file_list_and_commas_name_sources(folder):
    assert texts(f"{folder}/**/*.md") == ["in z"]
    assert texts(f"{folder}/b.txt, {folder}/a") == ["in b\r\n", "in m", "in z"]
    assert texts((f"{folder}/d.jsonl", f"{folder}/b.txt")) == ["in d 1", "in d 2", "in b\r\n"]


def test_file_with_a_comma_in_its_name_is_one_source(tmp_path):
    (tmp_path / "a,b.txt").write_text("both")
    assert texts(f"{tmp_path}/a,b.txt") == ["both"]


def test_field_and_separator(folder, tmp_path):
    assert texts(f"{folder}/d.jsonl", field="more", skipped=(skipped := Counter())) == ["other"]
    assert skipped == {"no text in the field 'more'": 1}
    (folder / "b.txt").write_text("one<|end|>two<|end|>")
    assert texts(f"{folder}/b.txt", separator="<|end|>", skipped=(skipped := Counter())) == ["one", "two"]
    assert skipped == {formats.EMPTY: 1}


def test_stdlib_is_the_same_every_time_and_holds_modules_only():
    found = list(documents("stdlib", skipped=Counter()))
    names = [each.name for each in found]
    assert found == list(documents("stdlib", skipped=Counter()))
    assert names == sorted(names)
    assert {"stdlib:json/decoder.py", "stdlib:textwrap.py"} <= set(names)
    assert not any(part in name for name in names for part in ("site-packages", "/test/", "/tests/", "_sysconfigdata"))
    assert 5e6 < sum(len(each.text.encode()) for each in found) < 3e7


ROWS = [
    (b'{"text": "good"}', None),
    (b'{"text": "caf\xe9"}', formats.INVALID),
    (b'{"text": "\\ud800"}', formats.INVALID),
    (b'{"text": " \\n"}', formats.EMPTY),
    (b"", formats.EMPTY),
    (b'{"text": "cut', formats.MALFORMED),
    (b"[" * 100_000, formats.MALFORMED),
    (b'{"other": "x"}', "no text in the field 'text'"),
    (b'{"text": 3}', "no text in the field 'text'"),
    (b'"text"', "no text in the field 'text'"),
]


def test_rows_that_are_no_documents_are_skipped_counted_and_told(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(row for row, _ in ROWS) + b'\n{"text": "last"}\n')
    assert texts(str(tmp_path / "x.jsonl"), skipped=(skipped := Counter())) == ["good", "last"]
    assert skipped == Counter(reason for _, reason in ROWS if reason)
    with pytest.warns(UserWarning, match="2 empty, 2 invalid UTF-8, 2 malformed JSON, 3 no text in the field"):
        texts(str(tmp_path / "x.jsonl"))


def test_text_files_that_are_no_documents_are_skipped_and_counted(tmp_path):
    for name, content in {"a.txt": b"\xff\xfe", "b.txt": b" \n", "c.txt": b"good", "d.png": b"x"}.items():
        (tmp_path / name).write_bytes(content)
    assert texts(str(tmp_path), skipped=(skipped := Counter())) == ["good"]
    assert skipped == {formats.INVALID: 1, formats.EMPTY: 1, formats.OTHER_KIND: 1}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cut.txt.gz", gzip.compress(b"text" * 100, mtime=0)[:-20], "cut.txt.gz cannot be read"),
        ("no.jsonl.gz", b"not gzipped", "no.jsonl.gz cannot be read"),
        ("x.png", b"", "x.png is of a kind that is not read, expected one of .txt"),
    ],
)
def test_file_that_cannot_be_read_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        texts(str(tmp_path / name))


@pytest.mark.parametrize("name", ["absent.txt", "absent/*.txt", "."])
def test_source_without_files_is_named(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"names no file to read, expected some of \.txt"):
        texts(str(tmp_path / name))


@pytest.mark.parametrize("source", ["", ",", (), "stdlib,stdlib"])
def test_no_source_or_one_named_twice_is_an_error(source):
    with pytest.raises(ValueError, match="expected one or several, each once"):
        texts(source)


def test_library_without_source_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="this Python has no source of its library"):
        sources.library(tmp_path)


def test_position_in_a_file_grows_to_its_size(tmp_path):
    lines = "".join(json.dumps({"text": str(i) * 1000}) + "\n" for i in range(1000))
    for name, content in {"x.jsonl": lines.encode(), "x.jsonl.gz": gzip.compress(lines.encode())}.items():
        (tmp_path / name).write_bytes(content)
        at = [each.at for each in documents(str(tmp_path / name))]
        assert at == sorted(at)
        assert at[-1] == len(content)


@pytest.mark.parametrize(("module", "source"), [("pyarrow", "x.parquet"), ("datasets", "hf:user/name")])
def test_missing_package_is_named_with_its_extra(module, source, tmp_path, monkeypatch):
    (tmp_path / "x.parquet").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    for name in ("parquet", "hub"):  # as if no test had imported them
        monkeypatch.delitem(sys.modules, f"gated_deltanet.data.{name}", raising=False)
        monkeypatch.delattr(f"gated_deltanet.data.{name}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf"{source} needs {module}: pip install 'gated-deltanet\[data\]'"):
        texts(source)


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("pyarrow.parquet")
    invalid = pyarrow.array([b"caf\xe9"]).cast(pyarrow.binary()).view(pyarrow.string())
    column = pyarrow.chunked_array([pyarrow.array(["one", None, "", "two"]), invalid])
    pyarrow.parquet.write_table(pyarrow.table({"text": column, "n": [0, 1, 2, 3, 4]}), tmp_path / "x.parquet")
    assert texts(str(tmp_path), skipped=(skipped := Counter())) == ["one", "two"]
    assert skipped == {"no text in the field 'text'": 1, formats.EMPTY: 1, formats.INVALID: 1}
    with pytest.raises(ValueError, match=r"x.parquet has no column 'body', expected one of text, n"):
        texts(str(tmp_path), field="body")
    (tmp_path / "x.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(ValueError, match=r"x.parquet cannot be read"):
        texts(str(tmp_path))


@pytest.mark.filterwarnings("ignore")  # theirs
def test_hugging_face_data_set_is_streamed(tmp_path):
    pytest.importorskip("datasets", reason="datasets is not installed")
    (tmp_path / "train.jsonl").write_text('{"text": "one"}\n{"text": ""}\n{"text": "two"}\n')
    (tmp_path / "test.jsonl").write_text('{"text": "three"}\n')
    assert texts(f"hf:{tmp_path}", skipped=(skipped := Counter())) == ["one", "two"]
    assert skipped == {formats.EMPTY: 1}
    assert texts(f"hf:{tmp_path}:default:test") == ["three"]
    with pytest.raises(ValueError, match="has no column 'body', expected one of text"):
        texts(f"hf:{tmp_path}", field="body")
