"""`gdn eval --suite commonsense`: table 3."""

import sys
from contextlib import redirect_stdout
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gated_deltanet.cli.eval import Eval

from .report import Report, check_any


def run(options: Eval, document: dict[str, Any]) -> Report:
    if find_spec("lm_eval") is None:
        raise ModuleNotFoundError("--suite commonsense needs lm-eval: pip install 'gated-deltanet[eval]'")
    from gated_deltanet.eval import commonsense, tasks
    from gated_deltanet.eval.checkpoints import fingerprint
    from gated_deltanet.eval.language_model import open_model
    from gated_deltanet.eval.remembering import Remembering

    settings = {"max_length": options.max_length, "share": not options.unshared}
    model = open_model(options.checkpoint, **settings, device=options.device)
    if options.out:
        model = Remembering(model, options.out / f"answers-{fingerprint(options.checkpoint, settings)}.jsonl")

    def evaluate(name: str, data: Any) -> dict[str, Any]:
        print(f"{name} …", file=sys.stderr)
        with redirect_stdout(sys.stderr):  # lm-eval prints
            return tasks.evaluate(model, name, data, options.data_dir, limit=options.limit)

    document |= commonsense.run(evaluate)
    document["versions"] = {name: version(name) for name in ("lm_eval", "datasets", "transformers", "torch")}
    document["seed"] = tasks.SEED
    check_any(document["sets"], document)
    name = Path(options.checkpoint).name
    return Report(commonsense.table(document, name), commonsense.short(document, name), commonsense.notes(document))
