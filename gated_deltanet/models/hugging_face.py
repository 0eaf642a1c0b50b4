"""What Hugging Face must know of a tokenizer: where a text ends, and the side to pad on."""

from typing import Any

from tokenizers import Tokenizer

from gated_deltanet.data.tokenizer import find_end_of_text

ROLES = ("bos_token", "eos_token", "pad_token")


def tokenizer_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Of its PreTrainedTokenizerFast."""
    settings = {"padding_side": "left", "clean_up_tokenization_spaces": False}
    settings["split_special_tokens"] = True  # written out in a text they are text
    end = find_end_of_text(tokenizer)
    return settings if end is None else settings | dict.fromkeys(ROLES, tokenizer.id_to_token(end))


def generation_settings(tokenizer: Tokenizer) -> dict[str, int]:
    """Of its GenerationConfig; none without an end of text."""
    end = find_end_of_text(tokenizer)
    return {} if end is None else {f"{role}_id": end for role in ROLES}


def files(tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    """What its AutoTokenizer and generate() read beside our files."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer_settings(tokenizer)}
    generation = generation_settings(tokenizer)
    return {"tokenizer_config.json": settings} | ({"generation_config.json": generation} if generation else {})
