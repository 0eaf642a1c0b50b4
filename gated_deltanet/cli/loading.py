"""A saved model with its tokenizer, for verbs that run one."""

from pathlib import Path
from typing import Any


def load(checkpoint: Path, device: str, weights: str | None = None) -> tuple[Any, Any]:
    """The `CausalLM`, on the device, and the `tokenizers.Tokenizer` in its folder. weights: to be packed so."""
    from gated_deltanet import load as load_model
    from gated_deltanet.data import tokenizer

    check_device(device)
    if weights is not None:
        from gated_deltanet.models.weights import check_format

        check_format(weights, "--weights")
    return load_model(checkpoint, weights).to(device), tokenizer.load(checkpoint)


def check_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch raises any of them
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"--device is {device!r}, expected one that torch can use here, such as cpu: {reason}"
        ) from error
