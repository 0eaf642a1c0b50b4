"""From our objects to Hugging Face's and back. Weights are shared, not copied."""

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from gated_deltanet.data.tokenizer import beginning_documents
from gated_deltanet.interop.folder import generation_settings, tokenizer_settings
from gated_deltanet.models.model import CausalLM

from .config import GdnConfig
from .model import GdnForCausalLM, checkpointable


def to_huggingface(model: CausalLM, tokenizer: Tokenizer | None = None) -> GdnForCausalLM:
    """With the tokenizer, generate() stops at the end of text, and pads with it."""
    with torch.device("meta"):
        wrapped = GdnForCausalLM(GdnConfig.from_model_config(model.config))
    wrapped.model = checkpointable(model)
    wrapped.train(model.training)
    if tokenizer is not None and wrapped.generation_config is not None:
        wrapped.generation_config.update(**generation_settings(tokenizer))  # pyright: ignore[reportArgumentType]
    return wrapped


def from_huggingface(model: GdnForCausalLM) -> CausalLM:
    return model.model


def to_fast_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """`to_fast_tokenizer(t).save_pretrained(folder)` writes what AutoTokenizer reads.

    It pads on the left, and begins every text with the end of text, as documents begin in training.
    """
    settings = tokenizer_settings(tokenizer)
    return PreTrainedTokenizerFast(tokenizer_object=beginning_documents(tokenizer), **settings)
