"""The gated delta rule in a layer of your own: python examples/op_in_your_own_model.py.

The layer learns to say, for every key it sees again, which value came with it before.
"""

import argparse

import torch
from torch import Tensor, nn

from gated_deltanet.ops import gated_delta_mix

N_KEYS, N_VALUES, PAIRS = 16, 8, 6


class Memory(nn.Module):
    """One gated delta layer: projections, the op, a projection back. No convolution, norm or MLP."""

    def __init__(self, d_model: int, n_heads: int = 2, d_k: int = 16, d_v: int = 16):
        super().__init__()
        self.heads = n_heads
        self.q, self.k = (nn.Linear(d_model, n_heads * d_k, bias=False) for _ in range(2))
        self.v = nn.Linear(d_model, n_heads * d_v, bias=False)
        self.a, self.b = (nn.Linear(d_model, n_heads, bias=False) for _ in range(2))  # forget, write
        self.A_log = nn.Parameter(torch.zeros(n_heads))
        self.dt_bias = nn.Parameter(torch.full((n_heads,), -4.0))  # forgets little at the start
        self.out = nn.Linear(n_heads * d_v, d_model, bias=False)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x: [B, L, d_model] -> the same, and the state, which goes on with the next tokens."""
        q, k, v = (proj(x).unflatten(-1, (self.heads, -1)) for proj in (self.q, self.k, self.v))
        o, state = gated_delta_mix(q, k, v, self.a(x), self.b(x), self.A_log, self.dt_bias, state)
        return self.out(o.flatten(2)), state


def episodes(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of keys and values, then the keys again. Returns keys, values (N_VALUES: not told) and what is asked."""
    keys = torch.stack([torch.randperm(N_KEYS)[:PAIRS] for _ in range(rows)])
    values = torch.randint(N_VALUES, (rows, PAIRS))
    order = torch.stack([torch.randperm(PAIRS) for _ in range(rows)])
    hidden = torch.full_like(values, N_VALUES)
    return torch.cat([keys, keys.gather(1, order)], 1), torch.cat([values, hidden], 1), values.gather(1, order)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    key, value, memory = nn.Embedding(N_KEYS, 64), nn.Embedding(N_VALUES + 1, 64), Memory(64)
    answer = nn.Linear(64, N_VALUES)
    model = nn.ModuleList([key, value, memory, answer])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        keys, values, asked = episodes(64)
        y, _ = memory(key(keys) + value(values))
        logits = answer(y[:, PAIRS:])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), asked.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 99 or step == steps - 1:
            right = (logits.argmax(-1) == asked).float().mean()
            print(f"step {step + 1}: loss {loss:.3f}, {right:.0%} of the answers right")


if __name__ == "__main__":
    main()
