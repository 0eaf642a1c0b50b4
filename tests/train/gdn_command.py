"""The command `gdn` with the kernels that the tests use, in a process of its own."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from gated_deltanet.cli import main
from gated_deltanet.ops import native


def use(instruction_set: str) -> None:
    if native.loaded():
        native.use_instruction_set(instruction_set)


def run_forked(args: Sequence[str], instruction_set: str, threads: int, said: Path) -> None:
    """In a process that a server forked. said: the file for what it prints."""
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(threads)
    use(instruction_set)
    sys.exit(main(args))


if __name__ == "__main__":
    use(sys.argv.pop(1))
    sys.exit(main())
