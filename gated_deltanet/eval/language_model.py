"""Any checkpoint as lm-eval's model: ours over their state, others by its own Hugging Face path. Needs lm-eval."""

from typing import Any

from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]

from gated_deltanet.data import tokenizer
from gated_deltanet.models import load

from .checkpoints import check_tokenizer, is_ours
from .harness import MAX_LENGTH, Harness

BATCH = 8  # sequences of HFLM's batches


def open_model(checkpoint: str, *, max_length: int | None, share: bool, device: str = "cpu") -> LM:
    """The folder of a model of ours, or any causal language model by its folder or its name on the hub.

    max_length: None: the model's own if it names one, else 2048. share: of `Harness`.
    """
    if is_ours(checkpoint):
        model, texts = load(checkpoint).to(device), tokenizer.load(checkpoint)
        return Harness(model, texts, max_length=max_length or MAX_LENGTH, share=share)
    check_tokenizer(checkpoint)
    build: Any = HFLM  # whose decorator hides what it takes
    return build(pretrained=checkpoint, batch_size=BATCH, max_length=max_length, device=device)
