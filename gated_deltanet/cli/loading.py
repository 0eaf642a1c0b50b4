"""A saved model with its tokenizer, for verbs that run one."""

from pathlib import Path
from typing import Any


def load(checkpoint: Path, device: str) -> tuple[Any, Any]:
    """The `CausalLM`, on the device, and the `tokenizers.Tokenizer` in its folder."""
    from gated_deltanet import load as load_model
    from gated_deltanet.data import tokenizer

    check_device(device)
    return load_model(checkpoint).to(device), tokenizer.load(checkpoint)


def check_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch raises any of them
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"--device is {device!r}, expected one that torch can use here, such as cpu: {reason}"
        ) from error
