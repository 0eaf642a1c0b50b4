"""Functions and modules share names: a package's attribute is the function, whatever was imported first."""

import subprocess
import sys

SUITES = ("commonsense", "extrapolation", "longbench", "needle", "recall")
EVAL = (
    "from gated_deltanet import eval",
    "import gated_deltanet.eval.needle, gated_deltanet.eval.recall; from gated_deltanet import eval",
    "from gated_deltanet import eval; import gated_deltanet.eval.needle, gated_deltanet.eval.commonsense",
    "from gated_deltanet.eval.longbench import TASKS; from gated_deltanet.eval import extrapolation; "
    "import gated_deltanet.eval.extrapolation; from gated_deltanet import eval",
)
FUNCTIONS = {
    "bench": ["accuracy", "decode", "op", "profile", "train"],
    "inspection": ["inspect", "page"],
    "plan": ["plan"],
}
MODULES = {
    "bench": ["accuracy", "decode", "op", "train", "machine"],
    "inspection": ["document", "page", "trace"],
    "plan": ["estimate", "speed", "devices"],
}
ANY_ORDER = f"""
import importlib, sys
import gated_deltanet

def forget(package):
    vars(gated_deltanet).pop(package, None)
    for name in [name for name in sys.modules if name.startswith(f"gated_deltanet.{{package}}")]:
        del sys.modules[name]

for imports in {EVAL}:
    forget("eval")
    names = {{}}
    exec(imports, names)
    for name in {SUITES}:
        assert type(getattr(names["eval"], name)).__name__ == "function", (imports, name)
print([name for name in ("lm_eval", "transformers", "datasets", "matplotlib") if name in sys.modules])

for package, names in {FUNCTIONS}.items():
    modules = [f"gated_deltanet.{{package}}.{{module}}" for module in {MODULES}[package]]
    for order in (modules, modules[::-1], *([module] for module in modules)):
        forget(package)
        for name in order:
            importlib.import_module(name)
        found = importlib.import_module(f"gated_deltanet.{{package}}")
        for name in names:
            assert callable(getattr(found, name)), (order, name)
            assert getattr(found, name).__doc__, name
        assert set(names) <= set(found.__all__), found.__all__
        assert found.__doc__
"""


def test_names_are_functions_after_any_order_of_imports_and_evaluation_imports_no_optional_package():
    done = subprocess.run([sys.executable, "-c", ANY_ORDER], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
