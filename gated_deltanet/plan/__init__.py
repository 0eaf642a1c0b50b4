"""What a training run will cost: FLOPs, memory, communication and time. Nothing is trained or allocated.

    from gated_deltanet.plan import plan
    plan("gdn-1.3b", gpus=64, gpu="h100", parallel="hsdp:8x8")["days"]

It is arithmetic; only with here=True torch.mm is timed for a second.
"""

from .devices import GPUS
from .estimate import plan

__all__ = ["GPUS", "plan"]
