"""Models of flash-linear-attention in plain torch, by its names of tensors and its functions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gated_deltanet.interop import fla

Weights = dict[str, Tensor]  # of a layer


def logits(x: Weights, config: dict[str, Any], tokens: Tensor) -> Tensor:
    """x: the tensors of a checkpoint. config: its config.json. tokens: [B, T]."""
    norm = partial(rms_norm, eps=config["norm_eps"])
    top = "backbone" if "backbone.embeddings.weight" in x else "model"
    h = x[f"{top}.embeddings.weight"][tokens]
    n_layers = 1 + max(int(name.split(".")[2]) for name in x if name.startswith(f"{top}.layers."))
    for i in range(n_layers):
        p = {name.removeprefix(f"{top}.layers.{i}."): z for name, z in x.items()}
        p |= {"bound": bounds(x["model.lower_bounds"])[i]} if "model.lower_bounds" in x else {}
        before = next(p[name] for name in ("attn_norm.weight", "mixer_norm.weight", "norm.weight") if name in p)
        p |= {name.replace("mixer.", "attn."): z for name, z in p.items() if name.startswith("mixer.")}
        h = h + mixer_of(config, i)(p, norm(h, before), config)
        h = h + mlp(p, norm(h, p["mlp_norm.weight"])) if "mlp_norm.weight" in p else h
    head = x[f"{top}.embeddings.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return F.linear(norm(h, x["model.norm.weight" if top == "model" else "backbone.norm_f.weight"]), head)


def mixer_of(config: dict[str, Any], layer: int) -> Callable[[Weights, Tensor, dict[str, Any]], Tensor]:
    specs = config.get("attn") or []
    for spec in [specs] if isinstance(specs, dict) else specs:
        if layer in spec["layers"]:
            return lambda p, y, _: attention(p, y, spec)
    return {
        "gated_deltanet": delta,
        "delta_net": delta,
        "gated_deltaproduct": delta_product,
        "retnet": retention,
        "hgrn2": hgrn2,
        "linear_attn": linear_attention,
        "mamba": mamba,
        "samba": mamba,
        "transformer": attention,
    }[config["model_type"]]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, [len(weight)], weight, eps)


def mlp(p: Weights, y: Tensor) -> Tensor:
    """Gate and up are one matrix in the layout of December 2024."""
    up = p.get("mlp.up_proj.weight")
    gate, up = p["mlp.gate_proj.weight"].chunk(2) if up is None else (p["mlp.gate_proj.weight"], up)
    return F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), p["mlp.down_proj.weight"])


def delta(p: Weights, y: Tensor, config: dict[str, Any]) -> Tensor:
    """Gated DeltaNet, and DeltaNet, which has no A_log."""
    d_v, gated = len(p["attn.o_norm.weight"]), "attn.A_log" in p
    H = config["num_heads"]
    q, k, v = (convolved(p, y, c, config) for c in "qkv")
    q, k, v = q.unflatten(-1, (H, -1)), k.unflatten(-1, (H, -1)), v.unflatten(-1, (-1, d_v))
    normalise = config.get("qk_norm", "l2") == "l2"
    if not normalise:
        q, k = (z / z.sum(-1, keepdim=True) for z in (q, k))
    beta = F.linear(y, p["attn.b_proj.weight"]).sigmoid() * (2 if config.get("allow_neg_eigval") else 1)
    if gated:
        gates = {"use_gate_in_kernel": True, "A_log": p["attn.A_log"], "dt_bias": p["attn.dt_bias"]}
        g = F.linear(y, p["attn.a_proj.weight"])
        o, _ = fla.chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True, **gates)
    else:
        o, _ = fla.chunk_delta_rule(q, k, v, beta, use_qk_l2norm_in_kernel=normalise)
    return finished(p, y, o, p["attn.o_norm.weight"], config)


def convolved(p: Weights, y: Tensor, c: str, config: dict[str, Any]) -> Tensor:
    """Causal, each channel by itself, then the activation, which is SiLU for values."""
    x, weight = F.linear(y, p[f"attn.{c}_proj.weight"]), p.get(f"attn.{c}_conv1d.weight")
    if weight is not None:
        x = F.conv1d(F.pad(x.mT, (weight.shape[-1] - 1, 0)), weight, groups=len(weight)).mT
    activations = {"silu": F.silu, "relu": F.relu, "elu": lambda z: F.elu(z) + 1}
    return activations["silu" if c == "v" else config.get("qk_activation", "silu")](x)


def finished(p: Weights, y: Tensor, o: Tensor, weight: Tensor, config: dict[str, Any]) -> Tensor:
    """The norm of each head, and the gate where there is one."""
    o = rms_norm(o, weight, config["norm_eps"]).flatten(2)
    o = o * F.silu(F.linear(y, p["attn.g_proj.weight"])) if "attn.g_proj.weight" in p else o
    return F.linear(o, p["attn.o_proj.weight"])


def delta_product(p: Weights, y: Tensor, config: dict[str, Any]) -> Tensor:
    """So many steps a token, one after the other in the last axis; it decays before the first."""
    H, n = config["num_heads"], config["num_householder"]
    q, k, v = (convolved(p, y, c, config) for c in "qkv")
    q, k, v = q.unflatten(-1, (1, H, -1)), k.unflatten(-1, (n, H, -1)), v.unflatten(-1, (n, H, -1))
    beta = F.linear(y, p["attn.b_proj.weight"]).sigmoid().unflatten(-1, (n, H))
    beta = beta * (2 if config["allow_neg_eigval"] else 1)
    g = torch.zeros_like(beta)
    if config["use_forget_gate"]:
        dt = F.softplus(F.linear(y, p["attn.a_proj.weight"]) + p["attn.dt_bias"])
        g[:, :, 0] = -p["attn.A_log"].exp() * dt
    q, k, v, g, beta = (z.flatten(1, 2) for z in (q.expand(-1, -1, n, -1, -1), k, v, g, beta))
    o, _ = fla.chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)
    return finished(p, y, o[:, n - 1 :: n], p["attn.o_norm.weight"], config)


def linear_attention(p: Weights, y: Tensor, config: dict[str, Any]) -> Tensor:
    phi = {"elu": lambda z: F.elu(z) + 1, "relu": F.relu}[config["feature_map"]]
    q, k, v = (F.linear(y, p[f"attn.{c}_proj.weight"]).unflatten(-1, (config["num_heads"], -1)) for c in "qkv")
    scores = torch.einsum("bthd,bshd->bhts", phi(q) * q.shape[-1] ** -0.5, phi(k)).tril()
    return finished(p, y, torch.einsum("bhts,bshv->bthv", scores, v), p["attn.norm.weight"], config)


def mamba(p: Weights, y: Tensor, config: dict[str, Any]) -> Tensor:
    """Token by token."""
    x, z = F.linear(y, p["attn.in_proj.weight"]).chunk(2, -1)
    weight = p["attn.conv1d.weight"]
    padded = F.pad(x.mT, (weight.shape[-1] - 1, 0))
    x = F.silu(F.conv1d(padded, weight, p["attn.conv1d.bias"], groups=len(weight))).mT
    n, rank = p["attn.A_log"].shape[1], p["attn.dt_proj.weight"].shape[1]
    dt, B, C = F.linear(x, p["attn.x_proj.weight"]).split([rank, n, n], -1)
    dt = F.softplus(F.linear(dt, p["attn.dt_proj.weight"], p["attn.dt_proj.bias"]))
    A, h, out = -p["attn.A_log"].exp(), torch.zeros(len(y), *p["attn.A_log"].shape), []
    for t in range(y.shape[1]):
        h = (dt[:, t, :, None] * A).exp() * h + (dt[:, t] * x[:, t])[..., None] * B[:, t, None]
        out.append((h * C[:, t, None]).sum(-1) + p["attn.D"] * x[:, t])
    return F.linear(torch.stack(out, 1) * F.silu(z), p["attn.out_proj.weight"])


def retention(p: Weights, y: Tensor, config: dict[str, Any]) -> Tensor:
    q, k, v = (F.linear(y, p[f"attn.{c}_proj.weight"]).unflatten(-1, (config["num_heads"], -1)) for c in "qkv")
    o, _ = fla.chunk_retention(rotated(q, 10000.0), rotated(k, 10000.0), v)
    return finished(p, y, o, p["attn.g_norm_swish_gate.weight"], config)


def rotated(x: Tensor, theta: float) -> Tensor:
    """Channel i of a head with channel i + d/2. x: [B, T, H, d]."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1])[:, None] * theta ** (-torch.arange(half) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def hgrn2(p: Weights, y: Tensor, config: dict[str, Any]) -> Tensor:
    """Its norm has an eps of its own."""
    q, f, i = (F.linear(y, p[f"attn.{c}_proj.weight"]) for c in "qfi")
    f = p["bound"] + (1 - p["bound"]) * f.sigmoid()
    q, f, i = (z.unflatten(-1, (config["num_heads"], -1)) for z in (F.silu(q), f, i))
    o, _ = fla.chunk_gla(q, 1 - f, i, f.log())
    return F.linear(rms_norm(o.flatten(2), p["attn.g_norm.weight"], 1e-5), p["attn.o_proj.weight"])


def bounds(lower_bounds: Tensor) -> Tensor:
    shares = lower_bounds.softmax(0)
    return shares.cumsum(0) - shares[0]


def attention(p: Weights, y: Tensor, spec: dict[str, Any]) -> Tensor:
    d = p["attn.q_proj.weight"].shape[0] // spec["num_heads"]
    q, k, v = (F.linear(y, p[f"attn.{c}_proj.weight"]).unflatten(-1, (-1, d)) for c in "qkv")
    q, k = (rotated(z, spec["rope_theta"]) for z in (q, k))
    k, v = (z.repeat_interleave(q.shape[2] // z.shape[2], 2) for z in (k, v))
    T = y.shape[1]
    ago = torch.arange(T)[:, None] - torch.arange(T)
    seen = (ago >= 0) & (ago < (spec["window_size"] or T))
    o = F.scaled_dot_product_attention(*(z.transpose(1, 2) for z in (q, k, v)), attn_mask=seen)
    return F.linear(o.transpose(1, 2).flatten(2), p["attn.o_proj.weight"])
