"""The command `gdn`: one module per verb, each a dataclass whose fields are the options and whose `run` does the work.

A verb imports torch and whatever else is slow inside `run`, so that `gdn --help` answers at once.
Its docstring ends with an example. A verb that has verbs of its own (`gdn bench accuracy`) is a dataclass with one
field, the union of them, whose `run` it calls.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes
from tyro.extras import subcommand_cli_from_dict

from gated_deltanet.cli.accelerate import Accelerate
from gated_deltanet.cli.bench import Bench
from gated_deltanet.cli.convert import Convert
from gated_deltanet.cli.data import Data
from gated_deltanet.cli.demo import Demo
from gated_deltanet.cli.doctor import Doctor
from gated_deltanet.cli.eval import Eval
from gated_deltanet.cli.generate import Generate
from gated_deltanet.cli.inspection import Inspect
from gated_deltanet.cli.plan import Plan
from gated_deltanet.cli.presets import Presets
from gated_deltanet.cli.quantize import Quantize
from gated_deltanet.cli.reproduce import Reproduce
from gated_deltanet.cli.tokenizer import Tokenizer
from gated_deltanet.cli.train import Train
from gated_deltanet.cli.tune import Tune

DESCRIPTION = """Train, evaluate, run and study Gated DeltaNet language models, on any machine.

gdn VERB --help explains a verb; gdn --version prints the version."""

VERBS = {
    "demo": Demo,
    "doctor": Doctor,
    "presets": Presets,
    "plan": Plan,
    "generate": Generate,
    "quantize": Quantize,
    "inspect": Inspect,
    "tokenizer": Tokenizer,
    "data": Data,
    "train": Train,
    "eval": Eval,
    "bench": Bench,
    "tune": Tune,
    "accelerate": Accelerate,
    "convert": Convert,
    "reproduce": Reproduce,
}


def main(args: Sequence[str] | None = None) -> int | None:
    """Run one verb and return the exit code: 2 for what the user can mend, 130 for an interruption."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where: print("gdn: warning:", one_line(message), file=sys.stderr)
            try:
                return run(sys.argv[1:] if args is None else args)
            finally:
                sys.stdout.flush()  # here, where a closed pipe can still be caught
    except BrokenPipeError:  # gdn … | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if sys.flags.dev_mode:  # python -X dev -m gated_deltanet …
            raise
        print("gdn: error:", one_line(error), file=sys.stderr)
        return 2


def run(args: Sequence[str]) -> int | None:
    if list(args) == ["--version"]:
        print("gated-deltanet", version("gated-deltanet"))
        return 0
    return parse(args).run()


def parse(args: Sequence[str]):
    """The verb named on the command line, its fields filled in."""
    config = (OmitSubcommandPrefixes, OmitArgPrefixes, FlagCreatePairsOff)
    return subcommand_cli_from_dict(VERBS, prog="gdn", description=DESCRIPTION, args=args, config=config)


def one_line(error: Exception | str) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    return " ".join(str(error).split())
