"""Accelerated transformers in other versions than the newest: `make test-transformers`, or one by its number.

    python tools/transformers_versions.py 4.57.6

Each gets an environment of its own, .venv-transformers-VERSION, which borrows every other package of this one.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

VERSIONS = ("4.57.6", "5.10.2")  # where qwen3_next appeared, and when layers still held their functions
ROOT = Path(__file__).resolve().parent.parent
TESTS = sorted(ROOT.glob("tests/interop/test_accelerate*.py"))


def main() -> int:
    outcomes = {version: test(version) for version in sys.argv[1:] or VERSIONS}
    for version, passed in outcomes.items():
        print(f"transformers {version}: {'passed' if passed else 'failed'}")
    return 0 if all(outcomes.values()) else 1


def test(version: str) -> bool:
    python = environment(version)
    return subprocess.run([python, "-m", "pytest", "-q", *TESTS], cwd=ROOT, check=False).returncode == 0


def environment(version: str) -> Path:
    folder = ROOT / f".venv-transformers-{version}"
    python = folder / "bin/python"
    if not (folder / ".made").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        get = "import sysconfig; print(sysconfig.get_path('purelib'))"
        own = Path(subprocess.run([python, "-c", get], check=True, capture_output=True, text=True).stdout.strip())
        (own / "borrowed.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        install = [python, "-m", "pip", "install", "--quiet", "--no-compile", f"transformers=={version}"]
        subprocess.run(install, check=True)
        (folder / ".made").touch()
    return python


if __name__ == "__main__":
    sys.exit(main())
