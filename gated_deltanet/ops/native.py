"""The library of native kernels: csrc/, compiled when the package is installed, called through ctypes."""

import ctypes
from collections.abc import Callable, Iterable
from ctypes import c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import torch  # before the library is loaded, so that both use one pool of threads
from torch import Tensor

import gated_deltanet

FILE = "_native/libgdn.so"  # in the package, or where an editable installation keeps what was compiled
NOT_BUILT = "the native library was not built: the installation found no C++ compiler that could (g++)"
# What the kernels are compiled for. "portable" is what every such processor has (SSE2 on x86-64, NEON on 64-bit ARM);
# the others are for x86-64 only. csrc/dispatch.cpp chooses one when the library is loaded.
INSTRUCTION_SETS = ("portable", "avx2", "avx512", "avx512bf16")
CHECKPOINT = 128  # tokens between the states kept for backward: a multiple of the kernels' chunk
DTYPES = (torch.float32, torch.bfloat16)


class Rows(ctypes.Structure):
    """Tokens of one operand, see `rows`."""

    _fields_ = (("data", c_void_p), ("token", c_int64), ("head", c_int64))


class Rule(ctypes.Structure):
    """The arguments of the kernels of gated_delta_rule and linear_attention, see `rule`."""

    _fields_ = (
        *((name, c_int64) for name in ("N", "H", "H_v", "d_k", "d_v", "threads", "interval")),
        *((name, c_int32) for name in ("bfloat16", "normalise")),
        ("ends", c_void_p),
        *((name, Rows) for name in ("q", "k", "v", "log_alpha", "beta")),
        ("state", c_void_p),
        ("o", Rows),
        *((name, c_void_p) for name in ("last_state", "corrections", "checkpoints")),
        *((name, Rows) for name in ("do_", "dq", "dk", "dv", "dlog_alpha", "dbeta")),
        *((name, c_void_p) for name in ("dlast_state", "dstate")),
    )


def load(path: Path | None) -> None:
    """Use the library in this file from now on, or none."""
    global _library, _reason
    _library, _reason = None, NOT_BUILT
    if path is not None:
        try:
            library = ctypes.CDLL(str(path))
            library.gdn_instruction_set.restype = ctypes.c_char_p
            library.gdn_gated_delta_rule_step.restype = ctypes.c_int
            library.gdn_use_large_pages.argtypes = [c_void_p, c_int64]
            library.gdn_read.argtypes = [c_void_p, c_void_p, c_int64, c_int64]
            library.gdn_run.argtypes = [c_void_p, c_int64, c_void_p]
            _ = library.gdn_decode_gates  # the newest: a library without it is refused
            _library, _reason = library, None
        except (AttributeError, OSError) as error:
            _reason = f"the native library could not be loaded: {error}"


def installed() -> Path | None:
    """Where the installation put the library."""
    return next((path for folder in gated_deltanet.__path__ if (path := Path(folder, FILE)).exists()), None)


_library: ctypes.CDLL | None
_reason: str | None
load(installed())


def unusable() -> str | None:
    """None if the library can be used, else the reason why not."""
    return _reason


def refusal(x: Tensor) -> str | None:
    """None if the kernels take operands like x, else the reason why not."""
    if x.device.type != "cpu":
        return f"takes tensors on the CPU, these are on {x.device}"
    if x.dtype not in DTYPES:
        return f"takes float32 or bfloat16, these tensors are {x.dtype}"
    return f"cannot run: {_reason}" if _reason else None


def loaded() -> ctypes.CDLL | None:
    """The library in use, or None."""
    return _library


def library() -> ctypes.CDLL:
    if _library is None:
        raise ValueError(_reason)
    return _library


def instruction_set() -> str | None:
    """The one of INSTRUCTION_SETS in use: the processor's fastest, or what `use_instruction_set` asked for.

    None without the library.
    """
    return None if _library is None else _library.gdn_instruction_set().decode()


def use_instruction_set(name: str) -> bool:
    """Use another from now on, in the whole process. False if the library or this processor lacks it."""
    return bool(library().gdn_use_instruction_set(name.encode()))


def usable_instruction_sets() -> list[str]:
    """Those that the library and this processor have."""
    before = library().gdn_instruction_set()
    usable = [name for name in INSTRUCTION_SETS if use_instruction_set(name)]
    library().gdn_use_instruction_set(before)
    return usable


def run(kernel: str, arguments: ctypes.Structure) -> None:
    """arguments: the kernel's structure, whose tensors the caller keeps alive. Other Python threads go on meanwhile."""
    getattr(library(), f"gdn_{kernel}")(ctypes.byref(arguments))


class PreparedCall(NamedTuple):
    """A kernel's call, ready but for some tensors: for calls that differ in nothing else."""

    kernel: Callable[[Any], None]
    arguments: ctypes.Structure
    kept: tuple[Tensor, ...]  # which the arguments point to

    def run(self, **tensors: Tensor) -> None:
        """With these tensors, by the fields' names, of the layouts that the arguments tell."""
        arguments = self.arguments
        own = type(arguments).from_buffer_copy(arguments)  # another Python thread may run, too
        for name, x in tensors.items():
            field = getattr(own, name)
            if isinstance(field, Rows):
                field.data = x.data_ptr()
            else:
                setattr(own, name, x.data_ptr())
        self.kernel(ctypes.byref(own))


def prepare(kernel: str, arguments: ctypes.Structure, *kept: Tensor) -> PreparedCall:
    """kept: the tensors that the arguments point to already. The others are given to each `run`."""
    return PreparedCall(getattr(library(), f"gdn_{kernel}"), arguments, kept)


def readable(x: Tensor) -> Tensor:
    """x, or a copy if its strides are none `rows` can tell. x: [B, L, H, d] or [B, L, H]."""
    if x.is_contiguous():
        return x
    B, L = x.shape[:2]
    tokens_in_a_row = B <= 1 or L <= 1 or x.stride(0) == L * x.stride(1)
    contiguous = x.ndim < 4 or x.shape[3] <= 1 or x.stride(3) == 1
    return x if tokens_in_a_row and contiguous else x.contiguous()


def rows(x: Tensor) -> Rows:
    """The tokens of x, which must be `readable` and stay alive. x: [B, L, H, d] or [B, L, H]."""
    strides = x.stride()
    return Rows(x.data_ptr(), strides[0 if x.shape[1] == 1 else 1], strides[2])


def rule(q: Tensor, tokens: Iterable[Rows], state: Tensor, ends: Tensor, normalise: bool = False) -> Rule:
    """What a kernel of the rule reads. tokens: q, k, v, log_alpha, beta. The state and ends must be contiguous."""
    N, H_v, d_k, d_v = state.shape
    return Rule(
        N, q.shape[-2], H_v, d_k, d_v, torch.get_num_threads(), CHECKPOINT, q.dtype == torch.bfloat16, normalise,
        ends.data_ptr(), *tokens, state.data_ptr(),
    )  # fmt: skip


def point(arguments: ctypes.Structure, **tensors: Tensor) -> None:
    """Lets fields of the arguments point to tensors, which the caller keeps alive: to their `rows`, or their data."""
    for name, x in tensors.items():
        of_rows = isinstance(getattr(arguments, name), Rows)
        setattr(arguments, name, rows(x) if of_rows else x.data_ptr())
