"""`CausalLM` as a Hugging Face model: `generate()`, Trainer, `save_pretrained`, `from_pretrained`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from gated_deltanet.interop.folder import CONFIG, load, save, some, stored_format
from gated_deltanet.models.model import Block, CausalLM
from gated_deltanet.models.start import init_weights
from gated_deltanet.models.weights import packed_format
from gated_deltanet.ops import linear_cross_entropy

from .cache import StateCache
from .config import GdnConfig
from .eager import Eager
from .offload import keep_what_others_read
from .reading import Reading, check_positions, embed, mask_of, read

REFUSED = {
    "cu_seq_lens_q": "one document a row, padded if need be",
    "seq_idx": "one document a row, padded if need be",
}
STRICTLY_FLOAT32 = ("A_log", "dt_bias")


class GdnBlock(GradientCheckpointingLayer, Block):
    """What `gradient_checkpointing_enable()` looks for: run again in backward rather than remembered, if asked to."""


class GdnForCausalLM(PreTrainedModel, GenerationMixin):
    """Holds a `CausalLM` as `model`, and no parameters beside it."""

    config_class = GdnConfig
    base_model_prefix = "model"
    accepts_loss_kwargs = True  # forward takes num_items_in_batch
    supports_gradient_checkpointing = True
    _input_embed_layer = "embedding"
    _no_split_modules = {"GdnBlock"}  # noqa: RUF012
    _skip_keys_device_placement = {"past_key_values"}  # noqa: RUF012
    _supports_sdpa = True

    def __init__(self, config: GdnConfig):
        super().__init__(config)
        self.model = checkpointable(CausalLM(config.to_model_config()))
        names = [name.rpartition(".")[2] for name, _ in self.model.named_parameters()]
        self._keep_in_fp32_modules_strict = {name for name in STRICTLY_FLOAT32 if name in names}
        self.started = not self.model.embedding.weight.is_meta  # `CausalLM` has done it
        self.post_init()
        self._fsdp_plan = fsdp_plan(self.model)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: StateCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """input_ids: [B, L], padded on either side or not at all; padding is never read.

        attention_mask: [B, at least L], not 0 at tokens; its last L columns are those of input_ids.
        position_ids: [B, L], not needed: the model counts by itself.
        past_key_values: read on from there; it is brought up to date. use_cache: None: as the config says, but not
        while training.
        inputs_embeds: [B, L, d_model], in the place of input_ids.
        labels: [B, L], the tokens themselves (each is compared with what was said before it), or −100.
        logits_to_keep: the last columns of which logits are wanted, or which columns; 0: all. None: all too, but while
        training with labels none at all, for the loss needs no logits.
        num_items_in_batch: the loss is divided by it rather than by the number of labels.
        output_hidden_states: return what each layer reads, [B, L, d_model], and then what the head reads.
        output_attentions: return the weights of each softmax attention (`Eager`). Other mixers have none.
        others: what generate() and trainers pass to every model. Those that would change the result are refused.

        At padding behind tokens the logits are those of the last token, so right-padded prompts can be continued; at
        padding before tokens they mean nothing.
        """
        check_others(others)
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is None or (input_ids is not None and inputs_embeds is not None):
            found = "neither is given" if given is None else "both are given"
            raise ValueError(f"input_ids and inputs_embeds: {found}, expected one of them")
        mask = mask_of((given.shape[0], given.shape[1]), attention_mask)
        check_positions(position_ids, mask)
        cache = self.cache(past_key_values, use_cache)
        hidden_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        attentions = self.config.output_attentions if output_attentions is None else output_attentions
        eager = None
        if attentions or self.config._attn_implementation == "eager":
            eager = Eager(columns_before(given, attention_mask, cache), mask)
        x = embed(self.model, given, mask) if inputs_embeds is None else inputs_embeds
        found = self.read(x, mask, cache, keep_inputs=bool(hidden_states), eager=eager)
        return CausalLMOutputWithPast(
            loss=None if labels is None else self.loss(found.x, labels, mask, num_items_in_batch),  # pyright: ignore
            logits=self.logits(found.x, logits_to_keep, needed=labels is None or not self.training),  # pyright: ignore
            past_key_values=cache,
            hidden_states=(*found.inputs, found.x) if hidden_states else None,  # pyright: ignore
            attentions=tuple(eager.weights) if attentions and eager else None,  # pyright: ignore
        )

    def cache(self, given: StateCache | None, use_cache: bool | None) -> StateCache | None:
        if given is not None and not isinstance(given, StateCache):
            raise ValueError(f"past_key_values is a {type(given).__name__}, expected a StateCache")
        if self.training and (use_cache is None or any(block.gradient_checkpointing for block in self.model.layers)):
            use_cache = False
        wanted = self.config.use_cache if use_cache is None else use_cache
        return StateCache() if given is None and wanted else given

    def logits(self, x: Tensor, keep: int | Tensor | None, *, needed: bool) -> Tensor | None:
        """[B, L, vocab_size] or the columns to keep; None if nobody needs any. x: [B, L, d_model]."""
        if keep is None:
            return self.model.logits(x) if needed else None
        return self.model.logits(x[:, slice(-keep or None, None) if isinstance(keep, int) else keep])

    def read(
        self, x: Tensor, mask: Tensor | None, cache: StateCache | None, *, keep_inputs: bool, eager: Eager | None
    ) -> Reading:
        """x: [B, L, d_model], embedded; mask: [B, L]. The cache, if there is one, is brought up to date."""
        options: dict[str, Any] = {"keep_inputs": keep_inputs, "eager": eager}
        if cache is None:
            return read(self.model, x, mask, keep_state=False, **options)
        cache.read_again(lambda *unread: read(self.model, *unread).state)
        found = read(self.model, x, mask, cache.state, **options)
        cache.append(found.state, x, mask)
        return found

    def loss(self, x: Tensor, labels: Tensor, mask: Tensor | None, num_items: int | Tensor | None) -> Tensor:
        """x: [B, L, d_model], labels, mask: [B, L]. What padding is or says does not count."""
        if mask is not None:
            labels = labels.masked_fill(~mask, -100)
        targets = F.pad(labels[:, 1:], (0, 1), value=-100)
        if mask is not None:
            targets = targets.masked_fill(~mask, -100)
        weight, reduction = self.model.head_weight.to(x.dtype), "mean" if num_items is None else "sum"
        loss = linear_cross_entropy(x, weight, targets.to(x.device, torch.int64), reduction=reduction)
        return loss if num_items is None else loss / torch.as_tensor(num_items, device=loss.device)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **options: Any) -> Any:
        """As transformers has it, but weights that are missing or of the wrong size are an error, not started anew.

        Unless one asks what was missing (output_loading_info), or for new weights in the place of those that do not
        fit (ignore_mismatched_sizes). A folder of packed weights (`gdn quantize`) is read as it is, with no other
        option, such as a dtype.
        """
        source = args[0] if args else options.get("pretrained_model_name_or_path")
        if source is not None and Path(source).is_dir() and is_packed(source):
            return packed_model(cls, source, output_loading_info)
        model, info = super().from_pretrained(*args, output_loading_info=True, **options)  # pyright: ignore
        wrong = {name for name, *_ in info["mismatched_keys"]}
        missing = sorted({*info["missing_keys"], *wrong} - (wrong if options.get("ignore_mismatched_sizes") else set()))
        if missing and not output_loading_info:
            raise ValueError(f"{model.name_or_path}: {some(missing)} is missing, expected all weights of its config")
        keep_what_others_read(model.model)
        for weight in model.parameters():
            if weight.device.type == "cpu" and weight.data_ptr() % 64:
                weight.data = weight.data.clone()  # out of the file, into torch's memory, as in `files.read_tensors`
        return (model, info) if output_loading_info else model

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Start all weights, but for those that have been read from a file."""
        given = {weight: weight.clone() for weight in self.parameters() if getattr(weight, "_is_hf_initialized", False)}
        if not self.started and len(given) < len([*self.parameters()]):
            init_weights(self.model)
            for weight, value in given.items():
                weight.copy_(value)
        self.started = True

    def save_pretrained(self, save_directory: str | Path, *args: Any, **options: Any) -> Any:
        """As transformers has it; packed weights are written as `gdn quantize` writes them."""
        if packed_format(self.model) is None:
            return super().save_pretrained(save_directory, *args, **options)
        save(self.model, save_directory)
        if self.generation_config is not None:
            self.generation_config.save_pretrained(save_directory)

    @property
    def gradient_checkpointing(self) -> bool:
        """What `gradient_checkpointing_enable()`, or by its newer name `activation_checkpointing_enable()`, sets."""
        return self.model.checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, enable: bool) -> None:
        self.model.checkpointing = enable

    def get_output_embeddings(self) -> nn.Linear | None:
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.model.head = new_embeddings

    def resize_token_embeddings(self, *args: Any, **options: Any) -> nn.Embedding:
        embedding = super().resize_token_embeddings(*args, **options)
        self.model.config = self.config.to_model_config()
        return embedding

    def _prepare_cache_for_generation(  # pyright: ignore  # says bool, returns None
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **options: Any
    ) -> None:
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic"):
            raise ValueError(f"generate: cache_implementation is {kind!r}, expected None: the model has its own state")
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = cache = StateCache()
            if generation_config.is_assistant:  # whose guesses will be taken back
                cache.activate_past_recording()


def checkpointable(model: CausalLM) -> CausalLM:
    for block in model.layers:
        block.__class__ = GdnBlock
    return model


def fsdp_plan(model: CausalLM) -> dict[str, str]:
    """How transformers shards it: layer by layer. Weights that are read outside of their own forward stay whole."""
    plan = {
        "model.embedding": "keep_full_weight",
        "model.layers.*": "free_full_weight",
        "model.norm": "keep_full_weight",
    }
    return plan if model.head is None else plan | {"model.head": "keep_full_weight"}


def columns_before(given: Tensor, attention_mask: Tensor | None, cache: StateCache | None) -> Tensor:
    """[B, S], true at tokens, of the columns in the cache. given: [B, L, …], attention_mask: [B, at least L]."""
    S, (B, L) = 0 if cache is None else cache.length, given.shape[:2]
    if attention_mask is not None and attention_mask.shape[1] >= S + L:
        return attention_mask[:, attention_mask.shape[1] - S - L : attention_mask.shape[1] - L].bool()
    return torch.ones(B, S, dtype=torch.bool, device=given.device)


def is_packed(folder: str | Path) -> bool:
    return (Path(folder) / CONFIG).exists() and stored_format(folder) is not None


def packed_model(cls: Any, folder: str | Path, output_loading_info: bool) -> Any:
    """A saved model whose weights are packed."""
    model = load(folder)
    with torch.device("meta"):
        wrapped = cls(GdnConfig.from_pretrained(folder))
    wrapped.model, wrapped.name_or_path = checkpointable(model), str(folder)
    if (Path(folder) / "generation_config.json").exists():
        wrapped.generation_config = GenerationConfig.from_pretrained(folder)
    wrapped.eval()
    return (wrapped, {}) if output_loading_info else wrapped


def check_others(others: Mapping[str, Any]) -> None:
    for name, expected in REFUSED.items():
        value = others.get(name)
        if value is not None and value is not False:
            found = list(value.shape) if isinstance(value, Tensor) else value
            raise ValueError(f"{name} is {found}, expected {expected}")
