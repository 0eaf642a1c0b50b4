"""The mixer of docs/adding-a-mixer.md, added to a copy of the package as that page says: a file, and two lines."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USES = """
import contextlib, io, json, sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
sys.meta_path = [BuiltinImporter, FrozenImporter, PathFinder]  # none that finds an editable installation first

import torch
from gated_deltanet import CausalLM, ModelConfig, cli, get_preset, layers
from gated_deltanet.bench.figures import style_of
from gated_deltanet.inspection import inspect
from gated_deltanet.models import count
from gated_deltanet.models.state import tensors
from gated_deltanet.plan import plan

torch.manual_seed(0)
config = get_preset("fading-nano")
model, tokens = CausalLM(config), torch.randint(257, (2, 33))
losses = []
for _ in range(2):
    loss = model.loss(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    with torch.no_grad():  # not by torch.optim, which imports torch.compile
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    losses.append(loss.item())
with contextlib.redirect_stdout(io.StringIO()) as printed:
    cli.main(["presets", "--size", "nano", "--json"])
_, state = model(tokens[:1])
print(json.dumps({
    "file": layers.__file__,
    "reads back": ModelConfig.from_dict(config.to_dict()) == config,
    "gradients": all(p.grad is not None and bool(p.grad.any()) for p in model.parameters()),
    "losses": losses,
    "presets": json.loads(printed.getvalue()),
    "parameters": sum(p.numel() for p in model.parameters()),
    "state_bytes": [sum(x.nbytes for x in tensors(state)), count.state_bytes(config), count.kv_bytes(config, 99)],
    "gpu": plan("fading-nano", length=64, batch_tokens=512, tokens=10**6),
    "seen": inspect(model, "abcd")["layers"][0],
    "style": style_of("fading-nano"),
}))
"""


def page_of_code() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "adding-a-mixer.md").read_text(), re.DOTALL)
    return code


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the uses above print, with the mixer in a copy of the package."""
    folder = tmp_path_factory.mktemp("copy")
    package = folder / "gated_deltanet"
    shutil.copytree(ROOT / "gated_deltanet", package)
    (package / "layers" / "fading.py").write_text(page_of_code())
    listing = package / "layers" / "__init__.py"
    before = listing.read_text()
    after = before.replace("from .gated_deltanet", "from .fading import Fading as Fading\nfrom .gated_deltanet", 1)
    after = after.replace("Longhorn, Attention)", "Longhorn, Attention, Fading)")
    assert len(set(after.splitlines()) - set(before.splitlines())) == 2
    listing.write_text(after)
    (folder / "uses.py").write_text(USES)  # a script's folder is where Python looks first
    done = subprocess.run([sys.executable, "uses.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_the_copy_that_is_used(found):
    assert not found["file"].startswith(str(ROOT))


def test_it_trains(found):
    assert found["gradients"]
    assert found["losses"][1] < found["losses"][0]


def test_its_config_is_read_from_files(found):
    assert found["reads back"]


def test_it_has_the_presets_of_its_shapes(found):
    rows = {row["name"]: row for row in found["presets"]}
    assert rows["fading-nano"]["parameters"] == found["parameters"]
    assert rows["fading-nano"]["parameters"] == pytest.approx(rows["gdn-nano"]["parameters"], rel=0.03)


def test_its_state_is_counted(found):
    held, counted, grows = found["state_bytes"]
    assert held == counted > 0
    assert grows == 0


def test_its_training_is_planned(found):
    assert found["gpu"]["fits"]
    assert found["gpu"]["step_seconds"] > 0


def test_its_memory_is_seen(found):
    alpha, norm = found["seen"]["alpha"], found["seen"]["norm"]
    assert len(alpha) == len(norm) == 3  # heads
    assert alpha[0][0] == pytest.approx(0.95, abs=0.01)
    assert found["seen"]["beta"] is None


def test_its_line_has_its_colour_and_name(found):
    assert found["style"] == ["purple", "h", "Fading attention"]
