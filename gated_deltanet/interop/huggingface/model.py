"""`CausalLM` as a Hugging Face model: `generate()`, Trainer, `save_pretrained`, `from_pretrained`."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from gated_deltanet.interop.folder import some
from gated_deltanet.models.model import CausalLM
from gated_deltanet.ops import linear_cross_entropy

from .cache import StateCache
from .config import GdnConfig
from .reading import check_positions, columns, inputs_of, mask_of, read

REFUSED = {
    "inputs_embeds": "input_ids: the model embeds tokens itself",
    "output_attentions": "False: most mixers have no attention weights",
    "cu_seq_lens_q": "one document a row, padded if need be",
    "seq_idx": "one document a row, padded if need be",
}


class GdnForCausalLM(PreTrainedModel, GenerationMixin):
    """Holds a `CausalLM` as `model`, and no parameters beside it."""

    config_class = GdnConfig
    base_model_prefix = "model"
    accepts_loss_kwargs = True  # forward takes num_items_in_batch
    supports_gradient_checkpointing = True
    _input_embed_layer = "embedding"
    _no_split_modules = {"Block"}  # noqa: RUF012
    _keep_in_fp32_modules_strict = {"A_log", "dt_bias"}  # noqa: RUF012
    _supports_sdpa = True

    def __init__(self, config: GdnConfig):
        super().__init__(config)
        self.model = CausalLM(config.to_model_config())
        for module in self.model.modules():
            module._is_hf_initialized = True  # pyright: ignore  # `init_weights` has been here: transformers must not
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: StateCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        output_hidden_states: bool | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """input_ids: [B, L], padded on either side or not at all; padding is never read.

        attention_mask: [B, at least L], not 0 at tokens; its last L columns are those of input_ids.
        position_ids: [B, L], not needed: the model counts by itself.
        past_key_values: read on from there; it is brought up to date. use_cache: None: unless training.
        labels: [B, L], the tokens themselves (each is compared with what was said before it), or −100.
        logits_to_keep: the last columns of which logits are wanted, or which columns; 0: all. None: all too, but while
        training with labels none at all, for the loss needs no logits.
        num_items_in_batch: the loss is divided by it rather than by the number of labels.
        output_hidden_states: return what each layer reads, [B, L, d_model], and then what the head reads.
        others: what generate() and trainers pass to every model. Those that would change the result are refused.

        At padding behind tokens the logits are those of the last token, so right-padded prompts can be continued; at
        padding before tokens they mean nothing.
        """
        check_others(others)
        if input_ids is None:
            raise ValueError("input_ids is None, expected tokens [B, L]")
        mask = mask_of(input_ids, attention_mask)
        check_positions(position_ids, mask)
        cache = self.cache(past_key_values, use_cache)
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        with inputs_of(self.model.layers if wanted else ()) as inputs:
            x = self.hidden(input_ids, mask, cache)
        read_last = inputs[-len(self.model.layers) :]  # the cache may have had something to read again before
        return CausalLMOutputWithPast(
            loss=None if labels is None else self.loss(x, labels, mask, num_items_in_batch),  # pyright: ignore
            logits=self.logits(x, logits_to_keep, needed=labels is None or not self.training),  # pyright: ignore
            past_key_values=cache,
            hidden_states=(*(columns(z, mask) for z in read_last), x) if wanted else None,  # pyright: ignore
        )

    def cache(self, given: StateCache | None, use_cache: bool | None) -> StateCache | None:
        if given is not None and not isinstance(given, StateCache):
            raise ValueError(f"past_key_values is a {type(given).__name__}, expected a StateCache")
        wanted = use_cache or (use_cache is None and not self.training)
        return StateCache() if given is None and wanted else given

    def logits(self, x: Tensor, keep: int | Tensor | None, *, needed: bool) -> Tensor | None:
        """[B, L, vocab_size] or the columns to keep; None if nobody needs any. x: [B, L, d_model]."""
        if keep is None:
            return self.model.logits(x) if needed else None
        return self.model.logits(x[:, slice(-keep or None, None) if isinstance(keep, int) else keep])

    def hidden(self, tokens: Tensor, mask: Tensor | None, cache: StateCache | None) -> Tensor:
        """What the head reads, [B, L, d_model]. tokens, mask: [B, L]."""
        if cache is None:
            return read(self.model, tokens, mask, None, keep_state=False)[0]
        cache.read_again(lambda *unread: read(self.model, *unread)[1])
        x, state = read(self.model, tokens, mask, cache.state)
        cache.append(state, tokens, mask)
        return x

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
        """As transformers has it, but weights that are missing or of the wrong size are an error, not started anew."""
        model, info = super().from_pretrained(*args, output_loading_info=True, **options)  # pyright: ignore
        if missing := sorted({*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}):
            raise ValueError(f"{model.name_or_path}: {some(missing)} is missing, expected all weights of its config")
        for weight in model.parameters():
            if weight.device.type == "cpu" and weight.data_ptr() % 64:
                weight.data = weight.data.clone()  # out of the file, into torch's memory, as in `files.read_tensors`
        return (model, info) if output_loading_info else model

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


def check_others(others: Mapping[str, Any]) -> None:
    for name, expected in REFUSED.items():
        value = others.get(name)
        if value is not None and value is not False:
            found = list(value.shape) if isinstance(value, Tensor) else value
            raise ValueError(f"{name} is {found}, expected {expected}")
