"""A plain torch function as one `torch.library` operator, differentiable by running it again."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._C import _is_tracing, _len_torch_dispatch_stack, _len_torch_function_stack
from torch._C._functorch import peek_interpreter_stack
from torch.nn import Parameter

P = ParamSpec("P")
R = TypeVar("R")


def operator(
    name: str, schema: str, forward: Callable, fake: Callable, backward: Callable | None = None, keeps: int = 0
) -> Callable:
    """Register `forward` as the operator `gdn::name`. Returns what calls it, or just `forward` where that is the same.

    schema: arguments and results, `"(Tensor q, Tensor? cu_seqlens) -> (Tensor, Tensor)"`.
    fake: from the same arguments, empty tensors of the results' shapes and dtypes.
    backward(grads, *inputs): the gradients of the floating-point inputs, in their order. Without it `forward`
    is run again under `torch.func.vjp`. Nothing but the inputs is kept between forward and backward,
    keeps: unless so many of the last results are there for that only. backward is then called (grads + kept, *inputs).
    """
    backward = backward or (lambda grads, *inputs: _recompute(forward, grads, inputs))
    arguments = schema[schema.index("(") + 1 : schema.index(") ->")]

    forward, backward = without_autocast(forward), without_autocast(backward)

    def run(*inputs: Any) -> Any:
        return _fresh(forward(*inputs), inputs)

    def call(*inputs: Any) -> Any:
        return run(*inputs) if unwatched(*inputs) else op(*inputs)

    op = torch.library.custom_op(f"gdn::{name}", run, mutates_args=(), schema=schema)
    backward_op = torch.library.custom_op(
        f"gdn::{name}_backward",
        lambda grads, *inputs: list(_fresh(tuple(backward(grads, *inputs)), [*grads, *inputs])),
        mutates_args=(),
        schema=f"(Tensor[] grads, {arguments}) -> Tensor[]",
    )
    op.register_fake(fake)
    backward_op.register_fake(lambda grads, *inputs: [empty_contiguous(x) for x in inputs if _is_float(x)])

    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        results = output if isinstance(output, tuple) else (output,)
        results, kept = results[: len(results) - keeps], results[len(results) - keeps :]
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)  # no zeros as large as what is kept
        ctx.results = [(x.shape, x.dtype, x.device) for x in results]
        ctx.save_for_backward(*kept, *(x if isinstance(x, Tensor) else None for x in inputs))
        ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]

    def gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: activation checkpointing allows no second look
        kept, tensors = saved[:keeps], saved[keeps:]
        inputs = [x if other is None else other for x, other in zip(tensors, ctx.others, strict=True)]
        known = [
            torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
            for grad, (shape, dtype, device) in zip(grads, ctx.results, strict=False)
        ]
        of_floats = iter(backward_op([*known, *kept], *inputs))
        return tuple(next(of_floats) if _is_float(x) else None for x in inputs)

    def no_second_derivative(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError(f"gdn::{name} can be differentiated once, not twice")

    op.register_autograd(gradients, setup_context=setup_context)
    backward_op.register_autograd(no_second_derivative)
    return call


def unwatched(*inputs: Any) -> bool:
    """Whether an operator would do nothing but run its function, which takes 12–23 µs less.

    That is on a CPU, when no gradient is wanted and no compiler, mode or transform looks on.
    """
    if watched():
        return False
    grad = torch.is_grad_enabled()
    return all(
        type(x) in (Tensor, Parameter) and x.is_cpu and not x.is_neg() and not (grad and x.requires_grad)
        for x in inputs
        if isinstance(x, Tensor)
    )


def plain(*inputs: Any) -> bool:
    """Whether inputs are `unwatched` and their tensors contiguous: a kernel can take them as they are."""
    return unwatched(*inputs) and all(x.is_contiguous() for x in inputs if isinstance(x, Tensor))


def watched() -> bool:
    """Whether a compiler, mode or transform looks on."""
    return bool(
        torch.compiler.is_compiling()
        or _len_torch_dispatch_stack()  # FakeTensorMode, FlopCounterMode, …
        or _len_torch_function_stack()  # torch.device as a context, …
        or peek_interpreter_stack()  # torch.func
        or _is_tracing()  # torch.jit.trace
    )


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """The same function in the dtypes of its arguments: autocast is for projections, not for sums of states."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next((x.device for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), torch.device("cpu"))
        if autocast_dtype(device) is None:  # the guard takes 4 µs
            return function(*args, **kwargs)
        with torch.autocast(device.type, enabled=False):
            return function(*args, **kwargs)

    return run


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """What projections compute in under autocast; None where it is off."""
    on = device.type != "meta" and torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if on else None


def _recompute(forward: Callable, grads: Sequence[Tensor], inputs: Sequence[Any]) -> Sequence[Tensor]:
    floats = [i for i, x in enumerate(inputs) if _is_float(x)]

    def of_floats(*values: Tensor) -> Any:
        filled = list(inputs)
        for i, value in zip(floats, values, strict=True):
            filled[i] = value
        return forward(*filled)

    outputs, vjp = torch.func.vjp(of_floats, *(inputs[i] for i in floats))[:2]
    return vjp(grads[0] if isinstance(outputs, Tensor) else tuple(grads))


def empty_contiguous(x: Tensor) -> Tensor:
    """What operators return, whatever the strides of their inputs: for `fake`."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _fresh(outputs: Any, inputs: Sequence[Any]) -> Any:
    """Contiguous outputs that share no memory with an input or with each other, as operators must return."""
    if isinstance(outputs, Tensor):
        return _fresh((outputs,), inputs)[0]
    taken = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, Tensor)}
    fresh = []
    for x in outputs:
        x = x.contiguous()
        x = x.clone() if x.untyped_storage().data_ptr() in taken else x
        taken.add(x.untyped_storage().data_ptr())
        fresh.append(x)
    return tuple(fresh)
