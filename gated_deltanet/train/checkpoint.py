"""All a run needs to go on as if nothing had happened, in safetensors, for any number of ranks. Nothing is pickled.

A checkpoint is a folder, step-00000100: a file of tensors from each rank (weights and AdamW's two moments, written by
`torch.distributed.checkpoint`, which shares them out anew when it reads), counters.json, and a manifest with the hash
of every file, written last, before the folder gets its name: it is there whole or not at all.
"""

import hashlib
import shutil
import warnings
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.optim import AdamW

from gated_deltanet.files import naming, read_json, sync, write_json

from .parallel import Place, barrier, total
from .step import Counters, check_counters

COUNTERS, MANIFEST = "counters.json", "manifest.json"
RNG = "rng"  # torch's generator, of the CPU: the model draws nothing, but what it is built of may one day


def save(folder: Path, model: nn.Module, optimizer: AdamW, counters: Counters, *, keep: int, place: Place) -> None:
    """Add a checkpoint to a folder of checkpoints and remove all but the newest `keep`."""
    final = folder / f"step-{counters.step:08}"
    unfinished = folder / f".{final.name}.unfinished"
    if place.rank == 0:
        clean(folder)
        unfinished.mkdir(parents=True)
    barrier(place)
    try:
        write_tensors(unfinished, tensors(model, optimizer), place)
        manifest = gathered_hashes(unfinished, place)
        if place.rank == 0:
            write_json(unfinished / COUNTERS, asdict(counters))
            manifest |= hashes([unfinished / COUNTERS])
            write_json(unfinished / MANIFEST, manifest)
            for damaged in (each for each in checkpoints(folder) if each.name >= final.name):
                remove(damaged)  # it was passed over, or we would not be here again
            publish(unfinished, final)
            for old in checkpoints(folder)[keep:]:
                remove(old)
    except (OSError, CheckpointException) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise OSError(f"the checkpoint of step {counters.step} could not be written: {reason(error)}") from error
    barrier(place)


def load(folder: Path, model: nn.Module, optimizer: AdamW, place: Place) -> Counters:
    """The newest checkpoint that is whole, into model and optimizer; a damaged one is passed over with a warning.

    Where there is none yet, everything stays as it is.
    """
    damaged = []
    for at in checkpoints(folder):
        if why := damage(at, place):
            damaged.append(f"{at.name}, {why}")
            if place.rank == 0:
                warnings.warn(f"{at} is passed over: {why}", stacklevel=2)
            continue
        counters = read_counters(at)
        start_moments(optimizer, counters.updates)
        named = tensors(model, optimizer)
        read_tensors(at, named, place)
        torch.set_rng_state(named[RNG])
        return counters
    if damaged:
        raise ValueError(f"all checkpoints in {folder} are damaged: {'; '.join(damaged)}. Start a new run")
    return Counters()


def checkpoints(folder: Path) -> list[Path]:
    """The newest first."""
    return sorted(folder.glob("step-*"), reverse=True)


def clean(folder: Path) -> None:
    """Remove what a killed process left."""
    for left in folder.glob(".step-*"):
        shutil.rmtree(left)


def tensors(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """Weights and moments by name, and the state of torch's generator, all to be read in place."""
    named = dict(model.named_parameters())
    if not optimizer.state:
        start_moments(optimizer, 0)
    moments = {
        f"{moment}.{name}": optimizer.state[parameter][moment]
        for moment in ("exp_avg", "exp_avg_sq")
        for name, parameter in named.items()
    }
    weights = {f"model.{name}": parameter.detach() for name, parameter in named.items()}
    return weights | moments | {RNG: torch.get_rng_state()}


def start_moments(optimizer: AdamW, updates: int) -> None:
    """As AdamW has them after so many updates, but zero."""
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        optimizer.state[parameter] = {
            "step": torch.tensor(float(updates), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }


def write_tensors(folder: Path, named: dict[str, Tensor], place: Place) -> None:
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about itself
        state_dict_saver.save(named, storage_writer=writer, no_dist=place.ranks == 1)


def read_tensors(folder: Path, named: dict[str, Tensor], place: Place) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            reader = HuggingFaceStorageReader(str(folder))
            state_dict_loader.load(named, storage_reader=reader, no_dist=place.ranks == 1)
        except CheckpointException as error:
            raise ValueError(f"{folder} is not of this model: {reason(error)}") from error


def gathered_hashes(folder: Path, place: Place) -> dict[str, str]:
    """Of the files all ranks have written; each rank reads its share."""
    barrier(place)
    own = hashes(sorted(folder.iterdir())[place.rank :: place.ranks])
    if place.ranks == 1:
        return own
    parts: list[dict[str, str]] = [{} for _ in range(place.ranks)]
    dist.all_gather_object(parts, own)
    return {name: value for part in parts for name, value in part.items()}


def damage(folder: Path, place: Place) -> str | None:
    """What is wrong with a checkpoint; all ranks agree whether something is."""
    manifest = read_manifest(folder)
    if manifest is None or COUNTERS not in manifest:
        return f"{MANIFEST} is missing or damaged"
    why = damaged_file(folder, sorted(manifest)[place.rank :: place.ranks], manifest)
    bad = total(torch.tensor(float(why is not None), device=place.device), place)
    return why or ("a file is damaged" if bad else None)


def read_counters(folder: Path) -> Counters:
    counters = read_json(folder / COUNTERS, Counters)
    with naming(folder / COUNTERS):
        check_counters(counters)
    return counters


def reason(error: BaseException) -> str:
    """The first failure in one line, without the traceback torch adds."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return " ".join(str(error).split())


def hashes(files: Iterable[Path]) -> dict[str, str]:
    """Of each file's content, by its name; each is on the disk when this returns."""
    found = {}
    for file in files:
        sync(file)
        digest = hashlib.sha256()
        with file.open("rb") as stream:
            while piece := stream.read(2**22):
                digest.update(piece)
        found[file.name] = digest.hexdigest()
    return found


def damaged_file(folder: Path, names: Iterable[str], manifest: dict[str, str]) -> str | None:
    """What is wrong with the files of these names, whose hashes the manifest holds; None: nothing."""
    for name in names:
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if hashes([file])[name] != manifest[name]:
            return f"{name} is damaged"
    return None


def read_manifest(folder: Path) -> dict[str, str] | None:
    """The hash of each file; None without a whole manifest."""
    try:
        return read_json(folder / MANIFEST, dict[str, str])
    except (OSError, ValueError):
        return None


def publish(unfinished: Path, folder: Path) -> None:
    """Give a folder its name."""
    sync(unfinished)
    unfinished.rename(folder)
    sync(folder.parent)


def remove(folder: Path) -> None:
    """Under a hidden name first: half a folder is never taken for a whole one."""
    hidden = folder.with_name(f".{folder.name}.removed")
    folder.rename(hidden)
    shutil.rmtree(hidden)
