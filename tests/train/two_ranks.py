"""Run by torchrun in test_parallel.py: FSDP from Python, perhaps after a command of gdn.

Arguments: data, folder, dtype; instruction set, command.
"""

import sys
from pathlib import Path

import gdn_command
import torch
from small import small_recipe, trained
from torch.distributed.tensor import DTensor

from gated_deltanet.layers.decay import Decay
from gated_deltanet.models import CausalLM
from gated_deltanet.train.loop import learn
from gated_deltanet.train.parallel import Place, processes
from gated_deltanet.train.run import Run, start


def check_weights(run: Run) -> None:
    """On every rank a shard of what one process would have started with; the decays in float32 when they are used."""
    torch.manual_seed(run.recipe.seed)
    expected = dict(CausalLM(run.model.config).named_parameters())
    for name, parameter in run.model.named_parameters():
        assert isinstance(parameter, DTensor), name
        assert torch.equal(parameter.full_tensor(), expected[name]), name
        assert parameter.dtype == torch.float32, name


def watch_decays(run: Run, seen: set[torch.dtype]) -> None:
    """Note the dtype of A_log whenever a mixer is about to read it."""
    for module in run.model.modules():
        if isinstance(decay := getattr(module, "decay", None), Decay):
            module.register_forward_pre_hook(lambda *_, decay=decay: seen.add(decay.A_log.dtype))


def sharded(place: Place, data: str, folder: str, dtype: str) -> None:
    run = start(small_recipe(Path(data), parallel="fsdp", dtype=dtype), folder, place)
    check_weights(run)
    seen: set[torch.dtype] = set()
    watch_decays(run, seen)
    run = trained(run) if place.rank == 0 else learn(run)
    assert seen == {torch.float32}


def main(data: str, folder: str, dtype: str, instruction_set: str = "", *command: str) -> None:
    if command:
        gdn_command.use(instruction_set)
        assert not gdn_command.main(command)
    with processes() as place:
        sharded(place, data, folder, dtype)


if __name__ == "__main__":
    main(*sys.argv[1:])
