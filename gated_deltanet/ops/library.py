"""A form of an op as a `torch.library` operator, with a gradient of its own or by running it again."""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._C import _is_tracing, _len_torch_dispatch_stack, _len_torch_function_stack
from torch._C._functorch import peek_interpreter_stack
from torch.compiler import is_compiling
from torch.nn import Parameter

P = ParamSpec("P")
R = TypeVar("R")

Input = Tensor | str | float | None  # of an operator; an int or a bool is a float, too
Results = Tensor | tuple[Tensor, ...]
Forward = Callable[..., Results]  # forward(*inputs)
Backward = Callable[..., Sequence[Tensor]]  # backward(grads, *inputs): of the floating-point inputs, in their order


class Form(NamedTuple):
    """One form of an op, as its operators run it."""

    name: str
    forward: Forward
    backward: Backward
    keeps: int  # how many of the last results are kept for backward, and for nothing else
    rereads: bool  # whether backward is given the other results, too


def operator(
    name: str,
    schema: str,
    forward: Forward,
    fake: Forward,
    backward: Backward | None = None,
    keeps: int = 0,
    rereads: bool = False,
) -> Callable[..., Any]:
    """Register `forward` as the operator `gdn::name`. Returns what calls it, or just `forward` where that is the same.

    schema: arguments and results, `"(Tensor q, Tensor? cu_seqlens) -> (Tensor, Tensor)"`.
    fake: from the same arguments, empty tensors of the results' shapes and dtypes.
    backward(grads, *inputs): the gradients of the floating-point inputs, in their order. Without it `forward`
    is run again under `torch.func.vjp`. Nothing but the inputs is kept between forward and backward,
    keeps: unless so many of the last results are there for that only. backward is then called (grads + kept, *inputs).
    rereads: the other results, too: backward(grads + results + kept, *inputs).
    """
    backward = backward or partial(_recompute, forward)
    form = Form(name, without_autocast(forward), without_autocast(backward), keeps, rereads)
    arguments = schema[schema.index("(") + 1 : schema.index(") ->")]

    op = torch.library.custom_op(f"gdn::{name}", partial(_run, form), mutates_args=(), schema=schema)
    op.register_fake(fake)
    backward_op = torch.library.custom_op(
        f"gdn::{name}_backward",
        partial(_run_backward, form),
        mutates_args=(),
        schema=f"(Tensor[] grads, {arguments}) -> Tensor[]",
    )
    backward_op.register_fake(_fake_gradients)
    op.register_autograd(partial(_gradients, form, backward_op), setup_context=partial(_save, form))
    backward_op.register_autograd(partial(_no_second_derivative, form))

    def call(*inputs: Input) -> Results:
        return _run(form, *inputs) if unwatched(*inputs) else op(*inputs)

    return call


def _run(form: Form, *inputs: Input) -> Results:
    results = form.forward(*inputs)
    return _fresh((results,), inputs)[0] if isinstance(results, Tensor) else _fresh(results, inputs)


def _run_backward(form: Form, grads: Sequence[Tensor], *inputs: Input) -> list[Tensor]:
    return list(_fresh(form.backward(grads, *inputs), [*grads, *inputs]))


def _fake_gradients(grads: Sequence[Tensor], *inputs: Input) -> list[Tensor]:
    return [empty_contiguous(x) for x in _floats(inputs)]


def _save(form: Form, ctx: Any, inputs: tuple[Input, ...], output: Results) -> None:
    """After a forward that will be differentiated: what `_gradients` needs, in torch's context."""
    results = output if isinstance(output, tuple) else (output,)
    results, kept = results[: len(results) - form.keeps], results[len(results) - form.keeps :]
    ctx.mark_non_differentiable(*kept)
    ctx.set_materialize_grads(False)  # no zeros as large as what is kept
    ctx.results = [(x.shape, x.dtype, x.device) for x in results]
    read_again = output if form.rereads and isinstance(output, tuple) else kept
    ctx.read_again = len(read_again)
    ctx.save_for_backward(*read_again, *(x if isinstance(x, Tensor) else None for x in inputs))
    ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]


def _gradients(
    form: Form, backward_op: Callable[..., list[Tensor]], ctx: Any, *grads: Tensor | None
) -> tuple[Tensor | None, ...]:
    """One for each input, None for those that have none. grads: of the results, None where nothing flows back."""
    saved = ctx.saved_tensors  # once: activation checkpointing allows no second look
    kept, tensors = saved[: ctx.read_again], saved[ctx.read_again :]
    inputs = [x if other is None else other for x, other in zip(tensors, ctx.others, strict=True)]
    known = [
        torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
        for grad, (shape, dtype, device) in zip(grads, ctx.results, strict=False)
    ]
    of_floats = iter(backward_op([*known, *kept], *inputs))
    return tuple(next(of_floats) if _is_float(x) else None for x in inputs)


def _no_second_derivative(form: Form, ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(f"gdn::{form.name} can be differentiated once, not twice")


def _recompute(forward: Forward, grads: Sequence[Tensor], *inputs: Input) -> Sequence[Tensor]:
    """The backward of a form that has none of its own."""

    def of_floats(*floats: Tensor) -> Results:
        given = iter(floats)
        return forward(*(next(given) if _is_float(x) else x for x in inputs))

    outputs, vjp = torch.func.vjp(of_floats, *_floats(inputs))[:2]
    return vjp(grads[0] if isinstance(outputs, Tensor) else tuple(grads))


def _fresh(outputs: Sequence[Tensor], inputs: Sequence[Input]) -> tuple[Tensor, ...]:
    """Contiguous outputs that share no memory with an input or with each other, as operators must return."""
    taken = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, Tensor)}
    fresh = []
    for x in outputs:
        x = x.contiguous()
        x = x.clone() if x.untyped_storage().data_ptr() in taken else x
        taken.add(x.untyped_storage().data_ptr())
        fresh.append(x)
    return tuple(fresh)


def _is_float(x: Input) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _floats(inputs: Sequence[Input]) -> list[Tensor]:
    return [x for x in inputs if isinstance(x, Tensor) and x.is_floating_point()]


def empty_contiguous(x: Tensor) -> Tensor:
    """What operators return, whatever the strides of their inputs: for `fake`."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


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


def without_gradient(*inputs: Any) -> bool:
    """Whether nobody looks on and no gradient is wanted, on any device."""
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    grad = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return not (grad or watched() or any(x.is_neg() for x in tensors))


def plain(*inputs: Any) -> bool:
    """Whether inputs are `unwatched` and their tensors contiguous: a kernel can take them as they are."""
    return unwatched(*inputs) and all(x.is_contiguous() for x in inputs if isinstance(x, Tensor))


def watched() -> bool:
    """Whether a compiler, mode or transform looks on."""
    return bool(
        is_compiling()
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
