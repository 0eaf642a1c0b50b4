"""Small random models, ours and Hugging Face's, with weights so large that they have opinions. Tokens are bytes."""

from dataclasses import replace
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Mamba2Config, Mamba2ForCausalLM

from gated_deltanet import CausalLM, get_preset
from gated_deltanet.data.tokenizer import byte_tokenizer
from gated_deltanet.interop.huggingface import to_fast_tokenizer

BYTES = byte_tokenizer()
POSITIONS = 700  # of GPT-2's table; Llama's are rotary, and it names as many


def make(architecture: str):
    """Of Hugging Face."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 257, "hidden_size": 24, "num_hidden_layers": 2, "initializer_range": 0.3}
    if architecture == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(vocab_size=257, n_positions=POSITIONS, n_embd=24, n_layer=2, n_head=3, initializer_range=0.3)
        )
    if architecture == "mamba2":
        return Mamba2ForCausalLM(Mamba2Config(**sizes, num_heads=6, head_dim=8, state_size=16, n_groups=2))
    return LlamaForCausalLM(
        LlamaConfig(**sizes, intermediate_size=40, num_attention_heads=3, max_position_embeddings=POSITIONS)
    )


def write(architecture: str, folder: Path) -> str:
    """`make`'s, with its tokenizer."""
    make(architecture).save_pretrained(folder)
    to_fast_tokenizer(BYTES).save_pretrained(folder)
    return str(folder)


def ours(architecture: str) -> CausalLM:
    torch.manual_seed(0)
    model = CausalLM(replace(get_preset(f"{architecture}-nano"), vocab_size=257)).eval()
    for weight in model.parameters():
        weight.data += 0.02 * torch.randn_like(weight)
    return model
