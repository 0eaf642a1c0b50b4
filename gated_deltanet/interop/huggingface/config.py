"""`ModelConfig` as transformers wants it: the same config.json."""

from difflib import get_close_matches
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from gated_deltanet.interop.folder import MODEL_TYPE
from gated_deltanet.models.config import ModelConfig, field_names
from gated_deltanet.naming import unknown

FIELDS, _ = field_names(ModelConfig)


class GdnConfig(PreTrainedConfig):
    """The fields of `ModelConfig`, in plain values (`ModelConfig.to_dict`), beside those every config has."""

    model_type = MODEL_TYPE
    has_no_defaults_at_init: ClassVar[bool] = True  # older transformers would call GdnConfig()
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "intermediate_size": "d_ff",
        "tie_word_embeddings": "tied",
    }

    d_model: int
    n_layers: int
    mixers: list[dict[str, Any]]
    d_ff: int
    vocab_size: int
    tied: bool = True
    norm_eps: float = 1e-5

    def __post_init__(self, **others: Any):
        """others: what transformers, its trainers and tools keep in configs. Names that are nearly ours are refused."""
        for name in others:
            if name not in self.attribute_map and get_close_matches(name, FIELDS, cutoff=0.75):
                raise unknown("GdnConfig: a field", name, FIELDS)
        super().__post_init__(**others)
        self.to_model_config()

    @classmethod
    def from_model_config(cls, config: ModelConfig) -> "GdnConfig":
        return cls(**config.to_dict())

    def to_model_config(self) -> ModelConfig:
        return ModelConfig.from_dict({name: getattr(self, name) for name in FIELDS})
