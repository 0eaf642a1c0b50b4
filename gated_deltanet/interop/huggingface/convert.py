"""From our objects to Hugging Face's and back. Weights are shared, not copied."""

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from gated_deltanet.data.tokenizer import END_OF_TEXT
from gated_deltanet.models.model import CausalLM

from .config import GdnConfig
from .model import GdnForCausalLM


def to_huggingface(model: CausalLM, tokenizer: Tokenizer | None = None) -> GdnForCausalLM:
    """With the tokenizer, generate() stops at the end of text, and pads with it."""
    with torch.device("meta"):
        wrapped = GdnForCausalLM(GdnConfig.from_model_config(model.config))
    wrapped.model = model
    wrapped.train(model.training)
    if tokenizer is not None and wrapped.generation_config is not None:
        end = tokenizer.token_to_id(END_OF_TEXT)
        wrapped.generation_config.update(bos_token_id=end, eos_token_id=end, pad_token_id=end)
    return wrapped


def from_huggingface(model: GdnForCausalLM) -> CausalLM:
    return model.model


def to_fast_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """`to_fast_tokenizer(t).save_pretrained(folder)` writes what AutoTokenizer reads. It pads on the left."""
    roles = ("bos_token", "eos_token", "pad_token") if tokenizer.token_to_id(END_OF_TEXT) is not None else ()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        split_special_tokens=True,  # written out in a text they are text, as in `gated_deltanet.data.tokenizer`
        clean_up_tokenization_spaces=False,
        **dict.fromkeys(roles, END_OF_TEXT),
    )
