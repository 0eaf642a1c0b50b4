"""The command `gdn` with the instruction set that is named first, for tests that run it in a process of its own."""

import sys

from gated_deltanet.cli import main
from gated_deltanet.ops import native

if __name__ == "__main__":
    instruction_set = sys.argv.pop(1)
    if native.loaded():
        native.use_instruction_set(instruction_set)
    sys.exit(main())
