"""`ModelConfig` as transformers wants it: the same config.json."""

from dataclasses import field
from difflib import get_close_matches
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from gated_deltanet.interop.folder import MODEL_TYPE
from gated_deltanet.models.config import ModelConfig, field_names
from gated_deltanet.models.presets import get_preset
from gated_deltanet.naming import unknown

FIELDS, REQUIRED = field_names(ModelConfig)
DEFAULT = get_preset("gdn-400m")
EPSILONS = ("_eps", "_epsilon")  # what transformers' models call theirs, and its tests write into every config


class GdnConfig(PreTrainedConfig):
    """The fields of `ModelConfig`, in plain values (`ModelConfig.to_dict`), beside those every config has.

    Without any it is that of gdn-400m. Whether the values fit each other is seen when a model is made of them.
    """

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "intermediate_size": "d_ff",
        "tie_word_embeddings": "tied",
    }

    d_model: int = DEFAULT.d_model
    n_layers: int = DEFAULT.n_layers
    mixers: list[dict[str, Any]] = field(default_factory=lambda: DEFAULT.to_dict()["mixers"])
    d_ff: int = DEFAULT.d_ff
    vocab_size: int = DEFAULT.vocab_size
    tied: bool = DEFAULT.tied
    norm_eps: float = DEFAULT.norm_eps
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **others: Any):
        """others: what transformers, its trainers and tools keep in configs. Names that are nearly ours are refused."""
        for name in others:
            theirs = name in self.attribute_map or name.endswith(EPSILONS)
            if not theirs and get_close_matches(name, FIELDS, cutoff=0.75):
                raise unknown("GdnConfig: a field", name, FIELDS)
        super().__post_init__(**others)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **options: Any) -> Any:
        """Of a file, which has to say everything."""
        if missing := [name for name in REQUIRED if name not in config_dict and name not in options]:
            raise ValueError(f"GdnConfig: {', '.join(missing)} is missing, expected all of {', '.join(REQUIRED)}")
        return super().from_dict(config_dict, **options)

    @classmethod
    def from_model_config(cls, config: ModelConfig) -> "GdnConfig":
        return cls(**config.to_dict())

    def to_model_config(self) -> ModelConfig:
        return ModelConfig.from_dict({name: getattr(self, name) for name in FIELDS})

    @property
    def num_attention_heads(self) -> int:
        """Of the first softmax attention, else of the first mixer with heads; setting it sets all."""
        with_heads = [mixer for mixer in self.mixers if "n_heads" in mixer]
        attention = [mixer for mixer in with_heads if mixer.get("mixer") == "Attention"]
        return (attention or with_heads or [{"n_heads": 1}])[0]["n_heads"]

    @num_attention_heads.setter
    def num_attention_heads(self, n: int) -> None:
        self.mixers = [mixer | ({"n_heads": n} if "n_heads" in mixer else {}) for mixer in self.mixers]
