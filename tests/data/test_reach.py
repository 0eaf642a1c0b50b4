import socket
from contextlib import closing

import pytest
from huggingface_hub import constants

from gated_deltanet import cli
from gated_deltanet.data import reach, tokenizer
from gated_deltanet.data.tokenizer import byte_tokenizer


@pytest.fixture
def hub(monkeypatch):
    """A server that takes connections in the place of the hub."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(reach, "getproxies", dict)
        yield server


@pytest.fixture
def no_hub(hub, monkeypatch, tmp_path):
    hub.close()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("given", ["gpt2", "owner/name.v1", "hf:owner/name", "hf:tests/none"])
def test_what_can_be_a_name_on_the_hub(given, monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    assert reach.hub_name(given) == given.removeprefix("hf:")


@pytest.mark.parametrize("given", ["tests/none", "./gpt2", "../gpt2", "/gpt2", "a/b/c", "a b", "", "hf:", "hf:a/b/c"])
def test_a_path_is_no_name_on_the_hub(given, monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    assert reach.hub_name(given) is None


def test_only_a_hub_that_takes_connections_can_be_asked(hub, monkeypatch):
    assert reach.reachable()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert not reach.reachable()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.close()
    assert not reach.reachable()


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_behind_a_proxy_it_is_the_proxy_that_must_answer(scheme, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.example")
    monkeypatch.setattr(reach, "proxy_bypass", lambda host: False)
    monkeypatch.setattr(reach, "getproxies", lambda: {"https": f"{scheme}proxy.example:3128"})
    assert reach.address() == ("proxy.example", 3128)
    monkeypatch.setattr(reach, "proxy_bypass", lambda host: host == "hub.example")
    assert reach.address() == ("hub.example", 443)


@pytest.mark.parametrize("given", ["nothere", "hf:nothere"])
def test_a_hub_that_can_be_reached_is_asked_for_a_tokenizer(given, hub, monkeypatch):
    asked = []
    monkeypatch.setattr(tokenizer.Tokenizer, "from_pretrained", lambda name: asked.append(name) or byte_tokenizer())
    assert tokenizer.is_bytes(tokenizer.get(given))
    assert asked == ["nothere"]


def test_what_was_downloaded_is_found_without_the_hub(no_hub, tmp_path):
    folder = tmp_path / "cache" / "models--owner--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    byte_tokenizer().save(str(folder / "snapshots" / ("0" * 40) / "tokenizer.json"))
    assert tokenizer.is_bytes(tokenizer.get("owner/name"))


@pytest.mark.parametrize("module", ["tokenizer show {}", "eval {}", "data prepare stdlib --tokenizer {} --out tokens"])
@pytest.mark.parametrize("name", ["nothere", "hf:nothere"])
def test_without_the_hub_a_name_fails_at_once_in_one_sentence(module, name, no_hub, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(module.format(name).split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "there is no folder nothere, nothing of this name was downloaded before, and http://127.0.0.1" in line


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf:owner/name:split", "cannot be reached for the data set owner/name"),
        ("hf:a/b/c", "data set is 'a/b/c', expected"),
    ],
)
def test_without_the_hub_a_data_set_fails_at_once(source, message, no_hub, tmp_path, capsys):
    pytest.importorskip("datasets", reason="datasets is not installed")
    assert cli.main(["data", "prepare", source, "--out", str(tmp_path / "tokens")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
