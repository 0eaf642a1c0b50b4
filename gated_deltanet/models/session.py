"""A model in use: the tokens it has read so far, as a state that can be kept, copied, taken back and stored."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from . import session_file
from .decoder import Decoder, most_ahead, supports
from .model import CausalLM, State
from .session_file import Fingerprint
from .state import tensors

PIECE = 4096  # tokens that `read` gives the model at once


class Point(NamedTuple):
    """Where a session is after some tokens. Nothing ever changes it, so keeping a reference is keeping the state."""

    length: int = 0  # tokens read by each sequence
    state: State | None = None
    x: Tensor | None = None  # [N, d_model], what the head reads of the last token


class Append(NamedTuple):
    before: Point
    tokens: Tensor  # [N, L]


class Snapshot(NamedTuple):
    model: CausalLM
    now: Point
    past: tuple[Append, ...]  # what `rollback` goes back to, oldest first


class Session:
    """One sequence, or N that grow together, read by a model whose weights stay as they are.

    keep: how many tokens `rollback` can take back. Each append since then holds the state before it: at most keep
    states more, one for each token when decoding, one for each draft in speculative decoding. A state of recurrent
    layers has the same size whatever the length, one of sliding-window attention holds `window` tokens, one of full
    attention all; `nbytes` tells. To go far back, take a snapshot: it holds one state.
    """

    def __init__(self, model: CausalLM, keep: int = 0):
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
            raise ValueError(f"Session: keep is {keep!r}, expected a whole number, at least 0")
        self.model, self.keep = model, keep
        self._now: Point = Point()
        self._past: tuple[Append, ...] = ()
        self._fingerprint = Fingerprint()
        self._few = most_ahead(model) if supports(model) else 0  # tokens at once that are a decoder's
        self._decoder: Decoder | None = None
        self._held: Point | None = None  # whose state the decoder's buffers hold

    @property
    def length(self) -> int:
        """How many tokens each sequence has read."""
        return self._now.length

    @property
    @torch.inference_mode()
    def logits(self) -> Tensor:
        """[N, vocab_size], of the last token's successor."""
        if self._now.x is None:
            raise ValueError("the session is empty, expected at least one token")
        return self.model.logits(self._now.x)

    @property
    def nbytes(self) -> int:
        """The memory that the state and what is kept for `rollback` hold, each tensor once."""
        kept = [(append.before[1:], append.tokens) for append in self._past]
        held = self._decoder.state if self._decoder else None
        storages = [x.untyped_storage() for x in tensors([self._now[1:], held, *kept])]
        return sum({x.data_ptr(): x.nbytes() for x in storages}.values())

    def append(self, tokens: Tensor | Sequence[int]) -> Tensor:
        """Read tokens, [L] or [N, L], and return the logits of each one's successor, [L, vocab_size] or [N, L, …]."""
        tokens = torch.as_tensor(tokens)
        with torch.inference_mode():
            x = self._run(self._rows(tokens))
            return self.model.logits(x).view(*tokens.shape, -1)

    def read(self, tokens: Tensor | Sequence[int]) -> Tensor:
        """As `append`, but only the last token's logits, [vocab_size] or [N, …]: for a document of any length.

        It is appended in pieces of 4096 tokens, so that the memory needed does not grow with it.
        """
        tokens = torch.as_tensor(tokens)
        rows = self._rows(tokens)
        if self._is_few(rows):
            self._run(rows)
        else:
            with self._all_or_nothing():
                for piece in rows.split(PIECE, 1):
                    self._run(piece)
        return self.logits.view(*tokens.shape[:-1], -1)

    def look(self, tokens: Tensor | Sequence[int]) -> Tensor:
        """The logits of each one's successor, [L, vocab_size], without reading the tokens: `take` reads the first of
        them, or all. They have the bits of tokens appended one by one, and take one pass over the weights.

        It is for one sequence that has begun, and at most `most_ahead` tokens.
        """
        rows = self._rows(torch.as_tensor(tokens))
        if not self._is_few(rows) or len(rows) > 1 or rows.shape[1] > self.most_ahead:
            expected = f"1 to {self.most_ahead} behind others of one sequence (`most_ahead` tells why)"
            raise ValueError(f"look: tokens is {list(rows.shape)}, expected {expected}")
        with torch.inference_mode():
            return self.model.logits(self._look(rows[0]))

    def take(self, n: int) -> None:
        """Read the next n of the tokens looked at, of which there are `ahead`."""
        if isinstance(n, bool) or not isinstance(n, int) or not 0 < n <= self.ahead:
            raise ValueError(f"take: n is {n!r}, expected 1 to {self.ahead}, the tokens looked at and not taken")
        assert self._decoder is not None
        taken = self._decoder.taken
        try:
            self._decoder.take(n)
        finally:
            if self._decoder.taken > taken:
                self._now = self._held = Point(self.length + n, None, self._decoder.hidden.clone())

    @property
    def ahead(self) -> int:
        """Tokens that were looked at and can be taken: none any more when the session has been used otherwise."""
        return self._decoder.left if self._decoder is not None and self._held is self._now else 0

    @property
    def most_ahead(self) -> int:
        """How many tokens `look` takes. None unless the model has packed weights, Gated DeltaNet and attention layers
        only and native kernels here, and nothing is kept for `rollback`, which needs the state between any two."""
        return 0 if self.keep else self._few

    def snapshot(self) -> Snapshot:
        """To come back to with `restore`, as often as one likes, in this session or another of the same model."""
        return Snapshot(self.model, self._point(), self._past)

    def restore(self, snapshot: Snapshot) -> None:
        if snapshot.model is not self.model:
            raise ValueError("restore: the snapshot is of another model, expected one of this session's")
        self._now, self._past = snapshot.now, recent(snapshot.past, self.keep)

    def fork(self) -> "Session":
        """A session that goes on from here by itself. Nothing is copied: states are never changed."""
        other = Session(self.model, self.keep)
        other.restore(self.snapshot())
        other._fingerprint = self._fingerprint
        return other

    def rollback(self, n: int) -> None:
        """Take back the last n tokens of each sequence.

        What remains is, on a CPU with the same number of threads bit for bit, what a session holds that made the same
        appends but for those taken back, and the last one shorter if n ends within it (then its first tokens are run
        again).
        """
        held = sum(append.tokens.shape[1] for append in self._past)
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= min(self.keep, held):
            reason = f"keep is {self.keep}, and of the {self.length} tokens read the last {held} can be reached"
            raise ValueError(f"rollback: n is {n!r}, expected from 0 to {min(self.keep, held)}: {reason}")
        with self._all_or_nothing():
            while n > 0:
                (self._now, tokens), self._past = self._past[-1], self._past[:-1]
                if n < tokens.shape[1]:
                    self._run(tokens[:, :-n])
                n -= tokens.shape[1]

    def save(self, file: str | Path) -> None:
        """Write the state, not what is kept for `rollback`. The old file stays until the new one is whole."""
        length, state, x = self._point()
        if state is None or x is None:
            raise ValueError("save: the session is empty, expected at least one token")
        session_file.save(file, self._fingerprint.of(self.model), length, state, x)

    def load(self, file: str | Path) -> None:
        """Go on from a saved session of the same model: config and weights. A file that is refused changes nothing."""
        self._now, self._past = Point(*session_file.load(file, self.model, self._fingerprint.of(self.model))), ()

    def _rows(self, tokens: Tensor) -> Tensor:
        """[N, L], checked against what was read before. The model checks the rest."""
        if tokens.ndim not in (1, 2) or not tokens.numel():
            raise ValueError(f"tokens is {list(tokens.shape)}, expected [L] or [N, L], at least one token")
        rows = tokens[None] if tokens.ndim == 1 else tokens
        if self._now.x is not None and len(rows) != len(self._now.x):
            raise ValueError(f"tokens is {list(tokens.shape)}, expected {len(self._now.x)} sequences, as before")
        return rows.to(self.model.device)

    @torch.inference_mode()
    def _run(self, rows: Tensor) -> Tensor:
        """One append of [N, L]. What the head reads, [N, L, d_model]."""
        few = self._is_few(rows)
        before = self._point() if self.keep or not few else self._now
        if few and rows.shape[1] == 1:
            x = self._step(rows[:, 0])[:, None]
        elif few:
            x = self._look(rows[0])[None]
            self.take(rows.shape[1])
        else:
            x, state = self.model.hidden(rows, before.state)
            self._now = Point(self.length + rows.shape[1], state, x[:, -1].clone())  # not all of x
        if self.keep:
            self._past = recent((*self._past, Append(before, rows.clone())), self.keep)
        return x

    def _is_few(self, rows: Tensor) -> bool:
        """Whether a decoder takes it: one token, or a few of one sequence, behind others. Then an interruption finds
        them read or not, as `length` tells, but what it found is not brought back."""
        few = 1 if len(rows) > 1 else self._few
        return bool(self._few) and rows.shape[1] <= few and self._now.x is not None

    def _step(self, tokens: Tensor) -> Tensor:
        """One token of each sequence, [N], by the decoder, which holds the state from then on: [N, d_model]."""
        decoder = self._decoder_here(tokens)
        decoder.settle()
        steps = decoder.steps
        try:
            return decoder.step(tokens)
        finally:
            if decoder.steps > steps:
                self._now = self._held = Point(self.length + 1, None, decoder.hidden.clone())

    def _look(self, tokens: Tensor) -> Tensor:
        """What the head reads of the next tokens, [L, d_model], by the decoder. tokens: [L]."""
        decoder = self._decoder_here(tokens)
        self._held = self._now
        return decoder.look(tokens)

    def _decoder_here(self, tokens: Tensor) -> Decoder:
        """With the session's state in its buffers. tokens: to be read, [L]."""
        self.model.check_tokens(tokens[None])
        if self._held is not self._now:
            state = self._point().state
            assert state is not None
            if self._decoder is not None and self._decoder.fits(state):
                self._decoder.load(state)
            else:
                self._decoder = Decoder(self.model, state)
        assert self._decoder is not None
        return self._decoder

    def _point(self) -> Point:
        """Where the session is, as a value: of a state that the decoder holds, a copy."""
        if self._held is self._now and self._now.state is None and self._decoder is not None:
            self._now = self._held = self._now._replace(state=self._decoder.snapshot())
        return self._now

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Whatever goes wrong on the way, the session is as it was before."""
        before = self._now, self._past
        try:
            yield
        except BaseException:
            self._now, self._past = before
            raise


def recent(past: tuple[Append, ...], tokens: int) -> tuple[Append, ...]:
    """The last appends, as many as it takes to have so many tokens."""
    first = len(past)
    while first and tokens > 0:
        first -= 1
        tokens -= past[first].tokens.shape[1]
    return past[first:]
