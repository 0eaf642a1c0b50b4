"""Small models for the tests of the Hugging Face side."""

from itertools import islice

import torch

from gated_deltanet import CausalLM, ModelConfig, get_preset
from gated_deltanet.layers import GatedDeltaNet
from gated_deltanet.models.presets import MIXERS

ARCHITECTURES = list(islice(MIXERS, 10))  # the paper's ten
SMALL = ModelConfig(12, 2, (GatedDeltaNet(1, 4, 6),), 16, 50)


def nano(name):
    torch.manual_seed(0)
    model = CausalLM(get_preset(f"{name}-nano"))
    for module in model.modules():  # so that no two tokens are nearly equally likely, nor the last one said again
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=0.15)
    return model.eval()


def tokens(*shape, seed=1):
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed))


def padded(documents, side):
    """With 7 for padding, which means nothing to the model."""

    def stack(rows, value):
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)

    return {"input_ids": stack(documents, 7), "attention_mask": stack([torch.ones_like(x) for x in documents], 0)}


def generate(model, prompt, n=8, **options):
    inputs = prompt if isinstance(prompt, dict) else {"input_ids": prompt}
    return model.generate(**inputs, max_new_tokens=n, pad_token_id=256, **({"do_sample": False} | options))


def checkpointing_name():
    """What the installed transformers calls gradient checkpointing: from 5.23 on the old name warns."""
    from transformers import PreTrainedModel

    new = "activation_checkpointing"
    return new if hasattr(PreTrainedModel, f"{new}_enable") else "gradient_checkpointing"
