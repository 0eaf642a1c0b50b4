"""Record the calls an op makes of the native kernels, for tests/native/driver.cpp to replay where there is no Python.

A recorded case is the memory the kernels are given, their calls in order with the pointers into it, and what they
should have written, in float64. Nothing is run meanwhile: what kernels write stays NaN until the driver runs them.
"""

import ctypes
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from gated_deltanet.ops import native

POINTER = ctypes.sizeof(ctypes.c_void_p)
STEP_OPERANDS = ("q", "k", "v", "log_alpha", "beta", "state", "last_state", "o")  # as in csrc/api.h
RESULTS = {  # fields, as `outputs_and_grads` names them
    "o": "output 0",
    "y": "output 0",
    "last_state": "output 1",
    "losses": "output 0",
    "logits": "output 1",
}


class Call(NamedTuple):
    kernel: str
    threads: int  # where their number stands in the arguments
    arguments: list[tuple[bytes, list[tuple[int, int, int]]]]  # with each pointer's place, buffer and offset in it
    fields: dict[str, Tensor]  # what the pointers are of


class Recording:
    """Stands for the library of native kernels and notes what it is asked to run."""

    def __init__(self) -> None:
        self.tensors: dict[int, Tensor] = {}  # by address; none is freed, so that no address has two meanings
        self.buffers: dict[int, bytes] = {}  # by address: the storages as they were when a kernel first got them
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        return partial(self.note, name.removeprefix("gdn_"))

    def note(self, kernel: str, layout: Any, operands: bytes | None = None) -> int:
        """layout: the kernel's arguments, by reference. operands: a step's pointers."""
        arguments, kind = layout._obj, type(layout._obj)
        of_pointers = [n for n, t in kind._fields_ if t in (ctypes.c_void_p, native.Rows)]  # Rows begin with one
        blocks = [(bytes(arguments), {n: getattr(kind, n).offset for n in of_pointers})]
        if operands is not None:
            blocks.append((operands, {n: i * POINTER for i, n in enumerate(STEP_OPERANDS)}))
        fields = [self.pointed(*block) for block in blocks]
        resolved = [
            (block, [(places[n], *self.locate(x)) for n, x in tensors.items()])
            for (block, places), tensors in zip(blocks, fields, strict=True)
        ]
        self.calls.append(Call(kernel, kind.threads.offset, resolved, {n: x for of in fields for n, x in of.items()}))
        return 1

    def pointed(self, block: bytes, places: dict[str, int]) -> dict[str, Tensor]:
        """What the pointers at these places of the block are of; without those that are NULL."""
        addresses = {name: struct.unpack_from("P", block, place)[0] for name, place in places.items()}
        return {name: self.tensors[address] for name, address in addresses.items() if address}

    def locate(self, x: Tensor) -> tuple[int, int]:
        """The number of the buffer x is in, and its offset there in bytes."""
        storage = x.untyped_storage()
        start = storage.data_ptr()
        if start not in self.buffers:
            self.buffers[start] = ctypes.string_at(start, storage.nbytes())
        return list(self.buffers).index(start), x.data_ptr() - start


def record(run: Callable[[], Any]) -> Recording:
    """The calls of native kernels that run() makes. Every pointer a kernel gets comes from `Tensor.data_ptr`."""
    recording, data_ptr = Recording(), Tensor.data_ptr

    def noted(x: Tensor) -> int:
        address = data_ptr(x)
        recording.tensors[address] = x
        return address

    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        with patch.object(native, "_library", recording), patch.object(Tensor, "data_ptr", noted):
            run()
    finally:
        torch.use_deterministic_algorithms(False)
    return recording


def results(field: str, x: Tensor) -> dict[str, Tensor]:
    """What a kernel writes to a field, by name, each as [parts, rows, columns], to be summed over the parts."""
    if field == "dBC":  # [parts, B, L, 2, n]
        dB, dC = x.flatten(1, 2).unbind(2)
        return {"dB": dB, "dC": dC}
    if field == "dtaps":  # [K + 1, D]
        return {"dweight": x[None, :-1].mT, "dbias": x[None, -1:]}
    if field == "dA":  # [N, D, n]
        return {"dA": x}
    return {RESULTS.get(field, field): x.reshape(1, 1, -1)}


def write(path: Path, recording: Recording, expected: dict[str, tuple[Tensor, float]]) -> None:
    """Write the case. expected: by name, each result in float64, and the relative error a kernel may have there."""
    written = [
        (call.kernel, name, view)
        for call in recording.calls
        for field, x in call.fields.items()
        for name, view in results(field, x).items()
        if name in expected
    ]
    if unwritten := expected.keys() - {name for _, name, _ in written}:
        raise ValueError(f"{path.stem}: no recorded kernel writes {', '.join(sorted(unwritten))}")
    checks = [encode_check(*x, *recording.locate(x[2]), *expected[x[1]]) for x in written]
    calls = [encode_call(call) for call in recording.calls]
    buffers = [encode(x) for x in recording.buffers.values()]  # last: locate may still add one
    path.write_bytes(b"".join(items(x) for x in (buffers, calls, checks)))


def encode(*values: str | bytes | float) -> bytes:
    """Numbers in 8 bytes; texts and bytes after their length."""
    encoded = b""
    for x in values:
        x = x.encode() if isinstance(x, str) else x
        if isinstance(x, bytes):
            encoded += struct.pack("<q", len(x)) + x
        else:
            encoded += struct.pack("<d" if isinstance(x, float) else "<q", x)
    return encoded


def items(encoded: list[bytes]) -> bytes:
    """A list, after its length."""
    return encode(len(encoded)) + b"".join(encoded)


def encode_call(call: Call) -> bytes:
    arguments = [
        encode(block) + items([encode(*pointer) for pointer in pointers]) for block, pointers in call.arguments
    ]
    return encode(call.kernel, call.threads) + items(arguments)


def encode_check(
    kernel: str, name: str, view: Tensor, buffer: int, offset: int, expected: Tensor, allowed: float
) -> bytes:
    axes = [x for axis in zip(view.shape, view.stride(), strict=True) for x in axis]
    place = encode(kernel, name, view.dtype == torch.bfloat16, buffer, offset, *axes, allowed, expected.numel())
    return place + expected.double().numpy().astype("<f8").tobytes()
