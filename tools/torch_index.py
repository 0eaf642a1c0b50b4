"""Print the pip option that keeps a machine without an NVIDIA GPU from downloading 3 GB of CUDA packages.

The option names PyTorch's own CPU wheel index, and only where it helps (Linux, no nvidia-smi) and
answers within two seconds. Everywhere else nothing is printed, and pip takes its default.
"""

import shutil
import subprocess
import sys

INDEX = "https://download.pytorch.org/whl/cpu"
PROBE = f"import urllib.request; urllib.request.urlopen({INDEX + '/torch/'!r}, timeout=2)"


def answers() -> bool:
    """A process of its own, because a name look-up cannot be timed out from inside."""
    try:
        probe = [sys.executable, "-c", PROBE]
        return subprocess.run(probe, timeout=2, capture_output=True, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    if sys.platform == "linux" and not shutil.which("nvidia-smi") and answers():
        print(f"--extra-index-url {INDEX}")
