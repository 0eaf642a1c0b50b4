"""What the README says is what happens."""

import re
from pathlib import Path

import torch

from gated_deltanet import ops

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_python_lines_run_as_they_stand():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["o"].shape == (2, 1000, 4, 128)
    assert names["o_next"].shape == (2, 4, 128)
    assert names["v"].grad.isfinite().all()
    assert torch.equal(names["state"].isfinite().all(), torch.tensor(True))


def test_table_of_ops_lists_every_op_with_its_forms():
    for op, backends in ops.backends().items():
        (row,) = re.findall(rf"^\| \[`{op}`\].*$", README, re.MULTILINE)
        assert "as above" in row or all(name in row for name in backends), row


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (Path(__file__).parents[1] / target).exists(), target
