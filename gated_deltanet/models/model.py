"""The causal language model: embedding, blocks, norm, head."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gated_deltanet.layers.mlp import MLP
from gated_deltanet.layers.norm import RMSNorm
from gated_deltanet.layers.packed import PackedEmbedding
from gated_deltanet.ops import linear_cross_entropy
from gated_deltanet.ops.checks import values_are_cheap

from .config import ModelConfig
from .start import init_weights


class Block(nn.Module):
    """It does not know which mixer it holds. With d_ff = 0 there is no MLP.

    Norms are of what mixer and MLP read, or with a mixer's `post_norm` of what they write.
    """

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        d_model, eps = config.d_model, config.norm_eps
        self.post_norm = getattr(config.mixer(layer), "post_norm", False)
        self.mixer_norm = RMSNorm(d_model, eps)
        self.mixer = config.mixer(layer).build(d_model, layer=layer, n_layers=config.n_layers, norm_eps=eps)
        self.mlp_norm = RMSNorm(d_model, eps) if config.d_ff else None
        self.mlp = MLP(d_model, config.d_ff) if config.d_ff else None

    def forward(
        self,
        x: Tensor,
        state: Any = None,
        *,
        cu_seqlens: Tensor | None = None,
        keep_state: bool = True,
        mixer: Callable[..., tuple[Tensor, Any]] | None = None,
    ) -> tuple[Tensor, Any]:
        """x: [B, L, d_model] -> the same. The rest is the mixer's (`gated_deltanet.layers`).

        mixer: what to call in the place of its own.
        """
        mixer, options = mixer or self.mixer, {"cu_seqlens": cu_seqlens, "keep_state": keep_state}
        if self.post_norm:
            y, state = mixer(x, state, **options)
            y = self.mixer_norm(y)
        else:
            y, state = mixer(self.mixer_norm(x), state, **options)
        x = x + y
        if self.mlp is not None and self.mlp_norm is not None:
            x = x + (self.mlp_norm(self.mlp(x)) if self.post_norm else self.mlp(self.mlp_norm(x)))
        return x, state


State: TypeAlias = tuple[Any, ...]  # one state a layer


class CausalLM(nn.Module):
    """A language model of the mixers its config names.

    start: how its parameters start, one of `gated_deltanet.models.start`.
    checkpointing: set it to True to keep only the blocks' inputs between forward and backward and run them again.
    """

    def __init__(self, config: ModelConfig, start: str = "width"):
        super().__init__()
        self.config = config
        self.checkpointing = False
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.head = None if config.tied else nn.Linear(config.d_model, config.vocab_size, bias=False)
        init_weights(self, start)

    @property
    def head_weight(self) -> Tensor:
        """[vocab_size, d_model]; unpacked each time, if it is packed."""
        return self.embedding.weight if self.head is None else self.head.weight

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    def forward(
        self, tokens: Tensor, state: State | None = None, *, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """The logits of each token's successor, [B, L, vocab_size], and the state after the last token.

        tokens: [B, L], integers. state: as an earlier call returned it, which it does not change; None at the start.
        cu_seqlens: [N + 1], packs N sequences in one row (B = 1). Without it N = B.
        """
        x, state = self.hidden(tokens, state, cu_seqlens=cu_seqlens)
        return self.logits(x), state

    def logits(self, x: Tensor) -> Tensor:
        """[…, vocab_size], of what `hidden` returned: […, d_model]."""
        if self.head is None and isinstance(self.embedding, PackedEmbedding):
            return self.embedding.project(x)
        return F.linear(x, self.embedding.weight) if self.head is None else self.head(x)

    def hidden(
        self, tokens: Tensor, state: State | None = None, *, cu_seqlens: Tensor | None = None, keep_state: bool = True
    ) -> tuple[Tensor, State]:
        """What the head reads, [B, L, d_model], and the state, of Nones with keep_state=False: nobody will go on."""
        if state is not None:
            self.check_state(state)
        x, states = self.embed(tokens), []
        for block, before in zip(self.layers, state or [None] * len(self.layers), strict=True):
            if self.checkpointing and torch.is_grad_enabled():
                block = partial(checkpoint, block, use_reentrant=False)
            x, after = block(x, before, cu_seqlens=cu_seqlens, keep_state=keep_state)
            states.append(after)
        return self.norm(x), tuple(states)

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        *,
        cu_seqlens: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> Tensor:
        """The cross entropy of targets: [B, L], each token's successor, or ignore_index; logits are never all built.

        reduction: "mean" over the targets not ignored, "sum", or "none" ([B, L]).
        """
        x, _ = self.hidden(tokens, cu_seqlens=cu_seqlens, keep_state=False)
        weight = self.head_weight.to(x.dtype)
        return linear_cross_entropy(x, weight, targets, ignore_index=ignore_index, reduction=reduction)

    def embed(self, tokens: Tensor) -> Tensor:
        """What the first layer reads, [B, L, d_model]. tokens: [B, L]."""
        self.check_tokens(tokens)
        return self.embedding(tokens)

    def check_tokens(self, tokens: Tensor) -> None:
        if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"tokens is {tokens.dtype} {list(tokens.shape)}, expected int64 [B, L]")
        if values_are_cheap(tokens) and tokens.numel():
            low, high = (int(x) for x in tokens.aminmax())
            if low < 0 or high >= self.config.vocab_size:
                found = low if low < 0 else high
                raise ValueError(f"tokens holds {found}, expected 0 to {self.config.vocab_size - 1}")

    def check_state(self, state: State) -> None:
        if len(state) != len(self.layers):
            raise ValueError(f"state is of {len(state)} layers, expected {len(self.layers)}")
        mixers: list[Any] = [block.mixer for block in self.layers]
        for i, (layer, mixer) in enumerate(zip(state, mixers, strict=True)):
            if layer is not None and not isinstance(layer, mixer.State):
                found = f"state is a {type(layer).__name__} in layer {i}"
                raise ValueError(f"{found}, expected a {mixer.State.__name__}: is it another model's?")
