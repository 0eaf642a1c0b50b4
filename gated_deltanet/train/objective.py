"""What is minimised."""

from torch import Tensor, nn

from gated_deltanet.models import CausalLM


class Objective(nn.Module):
    """A module of its own, so that DDP and FSDP can wrap it."""

    def __init__(self, model: CausalLM):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor, cu_seqlens: Tensor) -> Tensor:
        """The sum of the losses of all targets, in nats."""
        return self.model.loss(tokens, targets, cu_seqlens=cu_seqlens, reduction="sum")
