"""transformers' common suites against our Hugging Face model. Needs its checkout in the path: see tools/peers.py.

What is overridden here is what transformers' own recurrent models override, for the same reasons.
"""

import unittest

import torch
from tests.generation.test_utils import GenerationTesterMixin  # pyright: ignore[reportMissingImports]
from tests.test_configuration_common import ConfigTester  # pyright: ignore[reportMissingImports]
from tests.test_modeling_common import ModelTesterMixin, ids_tensor  # pyright: ignore[reportMissingImports]

from gated_deltanet import ModelConfig
from gated_deltanet.interop.huggingface import GdnConfig, GdnForCausalLM
from gated_deltanet.layers import Attention, GatedDeltaNet, Mamba2

MIXERS = {
    "Gdn": (GatedDeltaNet(2, 8, 16),),
    "GdnH1": (GatedDeltaNet(2, 8, 16), Attention(2, 16, window=16)),
    "GdnH2": (Mamba2(4, 8, 16), GatedDeltaNet(2, 8, 16), Attention(2, 16, window=16)),
    "Mamba2": (Mamba2(4, 8, 16),),
    "Transformer": (Attention(2, 16),),
}


class Tester:
    """What the suites ask a model's tester for."""

    __test__ = False  # pytest takes it for one by its name
    batch_size, seq_length, vocab_size, hidden_size, num_attention_heads, is_training = 13, 7, 99, 32, 2, True

    def __init__(self, mixers):
        self.mixers = mixers
        self.num_hidden_layers = max(2, len(mixers))

    def get_config(self):
        shape = ModelConfig(self.hidden_size, self.num_hidden_layers, self.mixers, 37, self.vocab_size)
        config = GdnConfig.from_model_config(shape)
        config.pad_token_id, config.bos_token_id, config.eos_token_id = 0, 1, 2
        return config

    def prepare_config_and_inputs_for_common(self):
        tokens = ids_tensor([self.batch_size, self.seq_length], self.vocab_size)
        return self.get_config(), {"input_ids": tokens, "attention_mask": torch.tril(torch.ones_like(tokens))}


class Suite(ModelTesterMixin, GenerationTesterMixin):
    all_model_classes = (GdnForCausalLM,)
    mixers = ()

    def setUp(self):
        self.model_tester = Tester(self.mixers)
        self.config_tester = ConfigTester(self, config_class=GdnConfig, d_model=37)

    def test_config(self):
        self.config_tester.run_common_tests()

    def attention_layers(self):
        layers = range(self.model_tester.num_hidden_layers)
        return sum(isinstance(self.mixers[i % len(self.mixers)], Attention) for i in layers)

    def test_num_layers_is_small(self):
        """One of each mixer."""
        assert self.model_tester.num_hidden_layers == max(2, len(self.mixers))

    def test_attention_outputs(self):
        """Only layers with attention have attentions, as in qwen3_next and olmo_hybrid."""
        if not self.has_attentions:
            self.skipTest(reason="Model does not output attentions")
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        model = GdnForCausalLM._from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            outputs = model(**inputs, output_attentions=True)
            more = model(**inputs, output_attentions=True, output_hidden_states=True)
        assert len(outputs.attentions) == self.attention_layers()
        assert list(outputs.attentions[0].shape) == [13, 2, 7, 7]
        assert len(more) == len(outputs) + 1
        model.config.output_attentions = True
        assert len(model(**inputs).attentions) == self.attention_layers()

    def _check_past_key_values_for_generate(self, batch_size, past_key_values, seq_length, config):
        """The cache is one of ours: a state for each layer."""
        assert len(past_key_values) == config.num_hidden_layers
        assert past_key_values.get_seq_length() == seq_length

    def _check_caches_are_equal(self, cache1, cache2):
        from gated_deltanet.models.state import tensors

        for a, b in zip(tensors(cache1.state), tensors(cache2.state), strict=True):
            torch.testing.assert_close(a, b)


for name, mixers in MIXERS.items():
    attends = any(isinstance(mixer, Attention) for mixer in mixers)
    fields = {"mixers": mixers, "has_attentions": attends, "__module__": __name__}
    globals()[f"{name}Test"] = type(f"{name}Test", (Suite, unittest.TestCase), fields)
del Suite  # it is no test by itself
