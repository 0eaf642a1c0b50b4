"""Where the tensors of another project's model and of ours meet: one of theirs may hold several of ours, side by side.

A project's names are a list of `Joint`s, read in both directions.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .accounting import Shapes
from .checkpoint import Piece

CONV = "conv.weight"  # theirs have an axis of one channel


class Joint(NamedTuple):
    """Tensors whose rows, one after the other, are the same on both sides."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    groups: int = 1  # in theirs, so many times some rows of each of ours
    shift: float = 0.0  # by what ours are above theirs: 1 where a norm multiplies by 1 + weight


def singles(names: Mapping[str, str], *, ours: str = "", theirs: str = "", shift: float = 0.0) -> list[Joint]:
    """One of ours -> one of theirs, each behind a prefix."""
    return [Joint((theirs + there,), (ours + here,), shift=shift) for here, there in names.items()]


def present(joints: Iterable[Joint], shapes: Shapes) -> list[Joint]:
    """Those of tensors that our model has. shapes: of the model."""
    return [joint for joint in joints if joint.ours[0] in shapes]


def to_ours(joints: Sequence[Joint], ours: Shapes, found: Shapes, prefix: str) -> tuple[list[Piece], Shapes]:
    """Our tensors, made of theirs, and the shapes that these must have. found: the shapes that they have."""
    pieces, expected = [], {}
    for joint in joints:
        expected |= their_shapes(joint, ours, found)
        rows = [ours[name][0] // joint.groups for name in joint.ours]
        for i, name in enumerate(joint.ours):
            make = partial(part_of, joint=joint, rows=rows, i=i, shape=ours[name])
            pieces.append(Piece(prefix + name, ours[name], joint.theirs, make, wide=joint.shift != 0))
    return pieces, expected


def to_theirs(joints: Sequence[Joint], ours: Shapes, prefix: str) -> list[Piece]:
    """Their tensors, made of ours."""
    pieces = []
    for joint in joints:
        shapes = their_shapes(joint, ours, {})
        each = [joint.ours] if len(joint.theirs) == 1 else [(name,) for name in joint.ours]
        for name, sources in zip(joint.theirs, each, strict=True):
            make = partial(whole_of, joint=joint, shape=shapes[name])
            pieces.append(Piece(name, shapes[name], tuple(prefix + source for source in sources), make))
    return pieces


def their_shapes(joint: Joint, ours: Shapes, found: Shapes) -> dict[str, tuple[int, ...]]:
    """As many rows as ours have. Of several tensors each has those of one of ours, but any other division will do."""
    shapes = [ours[name] for name in joint.ours]
    if len(joint.theirs) == 1:
        shapes = [(sum(shape[0] for shape in shapes), *shapes[0][1:])]
    if joint.ours[0].endswith(CONV):
        shapes = [(shape[0], 1, *shape[1:]) for shape in shapes]
    expected = dict(zip(joint.theirs, shapes, strict=True))
    there = [found[name] for name in joint.theirs if found.get(name)]
    same_rest = len(there) == len(shapes) and {shape[1:] for shape in there} == {shape[1:] for shape in shapes}
    if same_rest and sum(shape[0] for shape in there) == sum(shape[0] for shape in shapes):
        return {name: found[name] for name in joint.theirs}
    return expected


def part_of(*theirs: Tensor, joint: Joint, rows: Sequence[int], i: int, shape: tuple[int, ...]) -> Tensor:
    """The i-th of ours. rows: of each of ours, in a group."""
    part = torch.cat(theirs).unflatten(0, (joint.groups, -1)).split(list(rows), 1)[i].reshape(shape)
    return part + joint.shift if part.dtype == torch.float64 or not joint.shift else part.float() + joint.shift


def whole_of(*ours: Tensor, joint: Joint, shape: tuple[int, ...]) -> Tensor:
    whole = torch.cat([x.unflatten(0, (joint.groups, -1)) for x in ours], 1).reshape(shape)
    return whole - joint.shift if joint.shift else whole
