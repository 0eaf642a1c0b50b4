"""Our models as Hugging Face models. Needs transformers: `pip install 'gated-deltanet[hf]'`.

    import gated_deltanet.interop.huggingface
    model = AutoModelForCausalLM.from_pretrained(folder)  # as `gated_deltanet.save` or `save_pretrained` wrote it

The import registers the model type; without it transformers would have to be told to trust code from the folder.
"""

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .cache import StateCache
from .config import GdnConfig
from .convert import from_huggingface, to_fast_tokenizer, to_huggingface
from .model import GdnForCausalLM

AutoConfig.register(GdnConfig.model_type, GdnConfig)
AutoModelForCausalLM.register(GdnConfig, GdnForCausalLM)
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[GdnConfig.model_type] = GdnForCausalLM.__name__  # label smoothing, pipelines, serving
AutoTokenizer.register(GdnConfig, PreTrainedTokenizerFast)

__all__ = ["GdnConfig", "GdnForCausalLM", "StateCache", "from_huggingface", "to_fast_tokenizer", "to_huggingface"]
