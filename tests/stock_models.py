"""Small random models of transformers' own gated delta architectures, and what they read."""

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

SIZES = {
    "vocab_size": 97,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 44,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
MORE = {
    "qwen3_next": EXPERTS,
    "qwen3_5_text": {},
    "qwen3_5_moe_text": EXPERTS,
    "olmo_hybrid": {"linear_num_key_heads": 4},
    "qwen4_exp_text": EXPERTS
    | {
        "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
        "eos_token_id": 1,
        "hc_count": 2,
        "hc_lowrank": 10,
        "ple_layer_ids": [1],
        "ple_embed_dim": 12,
        "heads_per_ngram": 3,
        "ngram_vocab_size_base": 50,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 1,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 24,
        "indexer_compress_ratio": 3,
    },
}

MORE = {name: sizes for name, sizes in MORE.items() if name in CONFIG_MAPPING}  # older versions have fewer


def stock(model_type, dtype=torch.float32, seed=0, **options):
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **SIZES | MORE[model_type] | options)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.generation_config.eos_token_id = None  # all that is asked for is generated
    model.config._experts_implementation = "eager"  # which takes float64, too
    for name, weight in model.named_parameters():  # so that no two tokens are nearly equally likely
        if weight.ndim > 1 and "conv" not in name:
            torch.nn.init.normal_(weight, std=0.15)
    return model.eval()


def some(*names):
    """Those of them that the installed transformers has, or else the first it has."""
    return [name for name in names if name in MORE] or [*MORE][:1]


def tokens(*shape):
    return torch.randint(2, 97, shape, generator=torch.Generator().manual_seed(1))


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
