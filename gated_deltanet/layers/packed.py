"""Projections and embeddings whose weights are packed (`gated_deltanet.ops.linear`): read, not trained."""

from torch import Tensor, nn

from gated_deltanet.ops import PackedWeight, embedding_rows, linear


class Packed(nn.Module):
    """What holds a packed weight, as a buffer. Gradients reach its input, so that adapters can be trained around it."""

    packed: Tensor

    def __init__(self, weight: PackedWeight):
        super().__init__()
        self.format, self.shape = weight.format, weight.shape
        self.register_buffer("packed", weight.data)

    @property
    def packed_weight(self) -> PackedWeight:
        return PackedWeight(self.packed, self.format, self.shape)

    @property
    def weight(self) -> Tensor:
        """[N, K] float32, unpacked each time."""
        return self.packed_weight.to_dense()

    def project(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N]."""
        return linear(x, self.packed_weight)

    def extra_repr(self) -> str:
        return f"{list(self.shape)}, {self.format}"


class PackedLinear(Packed):
    """[..., K] -> [..., N]."""

    def __init__(self, weight: PackedWeight, bias: Tensor | None = None):
        super().__init__(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.packed_weight, self.bias)


class PackedEmbedding(Packed):
    """Tokens [...] -> [..., K] float32."""

    def forward(self, tokens: Tensor) -> Tensor:
        return embedding_rows(self.packed_weight, tokens)
