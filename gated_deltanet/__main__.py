"""`python -m gated_deltanet` is `gdn`."""

import sys

from gated_deltanet.cli import main

if __name__ == "__main__":
    sys.exit(main())
