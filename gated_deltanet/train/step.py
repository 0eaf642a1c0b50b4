"""The gradient of one step: that of the mean loss over all targets of the batch, however the batch was cut."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from gated_deltanet.data.rows import Batch

from .parallel import Place, total, unsynchronised, whole


class Step(NamedTuple):
    loss: float  # the mean over the targets of all ranks, in nats
    grad_norm: float  # before it was clipped


def gradient(
    objective: nn.Module, batches: Sequence[Batch], n_targets: int, *, clip: float, dtype: torch.dtype, place: Place
) -> Step:
    """Leave it in the parameters, clipped. batches: this rank's. n_targets: of all ranks.

    DDP and FSDP average over the ranks where we want the sum: hence their number as a factor.
    """
    loss = torch.zeros((), device=place.device, dtype=torch.float64)
    for i, batch in enumerate(batches):
        with unsynchronised(objective) if i + 1 < len(batches) else nullcontext():
            with autocast(place.device, dtype):
                part = objective(*to_device(batch, place.device))
            (part * (place.ranks / n_targets)).backward()
        loss += part.detach()
    norm = whole(clip_grad_norm_(objective.parameters(), clip))
    return Step(float(total(loss, place)) / n_targets, float(norm))


def to_device(batch: Batch, device: torch.device) -> Batch:
    return Batch(*(x.to(device, non_blocking=True) for x in batch))


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)
