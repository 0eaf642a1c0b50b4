"""Continue prompts: one as a stream, in a session that then holds it; or many of unequal length at once."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from .decoder import Decoder, supports
from .draft import Ahead, ModelDraft, PromptDraft
from .draft import check as check_draft
from .draft import make as make_draft
from .model import CausalLM, State
from .sampling import Sampling, draw
from .session import Point, Session, Snapshot
from .state import last, map_state


class Piece(NamedTuple):
    """One token of a stream."""

    token: int
    text: str  # what can be shown now: whole characters, nothing of a stop string; "" without a tokenizer
    reason: str | None  # why it is the last one: "end_of_text", "stop" or "max_tokens"; None: it is not


class Completion(NamedTuple):
    tokens: list[int]  # all that were drawn, but for the end of text
    text: str
    reason: str


class Writer:
    """What one sequence has said so far, and whether that is all."""

    def __init__(self, prompt: Sequence[int], sampling: Sampling, tokenizer: Tokenizer | None, end: int | None):
        if tokenizer is None and sampling.stop:
            raise ValueError(f"stop is {sampling.stop!r}, expected a tokenizer with it: tokens alone have no text")
        self.stream = TextStream(tokenizer, prompt, sampling.stop) if tokenizer else None
        self.max_tokens, self.end = sampling.max_tokens, end
        self.pieces: list[Piece] = []

    def push(self, token: int) -> Piece:
        text = self.stream.push(token) if self.stream and token != self.end else ""
        reason = self._reason(token)
        if self.stream and reason:
            text += self.stream.finish()
            reason = "stop" if self.stream.stopped else reason  # the last, open characters may be one
        self.pieces.append(Piece(token, text, reason))
        return self.pieces[-1]

    def _reason(self, token: int) -> str | None:
        if token == self.end:
            return "end_of_text"
        if self.stream and self.stream.stopped:
            return "stop"
        return "max_tokens" if len(self.pieces) + 1 == self.max_tokens else None

    def completion(self) -> Completion:
        tokens = [piece.token for piece in self.pieces if piece.token != self.end]
        return Completion(tokens, "".join(piece.text for piece in self.pieces), self.pieces[-1].reason or "")


def stream(
    session: Session,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    tokenizer: Tokenizer | None = None,
    end: int | None = None,
    draft: CausalLM | str | None = None,
) -> Iterator[Piece]:
    """Read the prompt (which may be empty if something was read before) and draw tokens, one piece each.

    end: the token that ends a text, not read. When a piece arrives, the session has read its token: it can be
    continued at any time. The repetition penalty is for tokens of the prompt and of the completion.
    draft: what guesses at the tokens, so that several can be read at once (`draft.py`): a smaller model of the same
    vocabulary, or "prompt": what stood before is expected again. The tokens are the same as without, but those drawn
    with a model's guesses, which are distributed as without.
    """
    guesser = None if draft is None else make_draft(draft, session, prompt)
    writer, (generator,) = Writer(prompt, sampling, tokenizer, end), row_generators(sampling, 1)
    logits = session.read(torch.tensor([list(prompt)])) if len(prompt) else session.logits
    if len(logits) != 1:
        raise ValueError(f"the session is of {len(logits)} sequences, expected one")
    yield from written(session, logits, prompt, sampling, writer, generator, guesser)


def written(
    session: Session,
    logits: Tensor,
    prompt: Sequence[int],
    sampling: Sampling,
    writer: Writer,
    generator: torch.Generator,
    guesser: PromptDraft | ModelDraft | None,
) -> Iterator[Piece]:
    """The pieces of a stream behind a prompt that was read. logits: [1, vocab_size], of what follows it."""
    seen = seen_tokens([prompt], logits, sampling)
    ahead = None if guesser is None else Ahead(session, guesser, sampling, generator, seen)
    reason = None
    while reason is None:
        token = draw(logits, sampling, [generator], seen) if ahead is None else ahead.draw(logits)
        piece = writer.push(int(token))
        mark(seen, token)
        if piece.token != writer.end:
            length = session.length
            try:
                logits = session.read(token[:, None]) if ahead is None else ahead.read(token)
            except KeyboardInterrupt:
                if session.length > length:  # it came when the token had been read
                    yield piece
                raise
        reason = piece.reason
        yield piece


@torch.inference_mode()
def generate(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    tokenizer: Tokenizer | None = None,
    end: int | None = None,
    draft: CausalLM | str | None = None,
) -> list[Completion]:
    """Continue prompts, all at once: they are read as one packed row, and each step draws a token for every one.

    Row i draws from a generator of its own, seeded with seed + i: what it draws does not depend on the others.
    draft: as `stream` takes it. Then one prompt is continued after another, with the same tokens.
    """
    if draft is not None:
        check_draft(draft, model)
    writers = [Writer(prompt, sampling, tokenizer, end) for prompt in prompts]
    rows, generators = list(range(len(prompts))), row_generators(sampling, len(prompts))
    x, state = read_packed(model, prompts)
    if draft is not None:
        for i, (prompt, writer) in enumerate(zip(prompts, writers, strict=True)):
            session = Session(model)
            session.restore(Snapshot(model, Point(len(prompt), *map_state(lambda z, i=i: z[[i]], (state, x))), ()))
            guesser = make_draft(draft, session, prompt)
            deque(written(session, session.logits, prompt, sampling, writer, generators[i], guesser), maxlen=0)
        return [writer.completion() for writer in writers]
    logits = model.logits(x)
    seen = seen_tokens(prompts, logits, sampling)
    step = Steps(model, state)
    while True:
        tokens = draw(logits, sampling, [generators[i] for i in rows], seen)
        pieces = [writers[i].push(token) for i, token in zip(rows, tokens.tolist(), strict=True)]
        going = [at for at, piece in enumerate(pieces) if piece.reason is None]
        if not going:
            return [writer.completion() for writer in writers]
        mark(seen, tokens)
        if len(going) < len(rows):
            tokens, seen = map_state(lambda x, going=going: x[going], (tokens, seen))
            step.choose(going)
            rows = [rows[at] for at in going]
        logits = model.logits(step.hidden(tokens))


class Steps:
    """A token for each of some sequences, one after another: by a `Decoder`, which updates its state in place, or by
    the model."""

    def __init__(self, model: CausalLM, state: State):
        self.model, self.state = model, state
        self.decoder = Decoder(model, state) if supports(model) else None

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the head reads, [N, d_model]. tokens: [N]."""
        if self.decoder is not None:
            return self.decoder.step(tokens)
        x, self.state = self.model.hidden(tokens[:, None], self.state)
        return x[:, -1]

    def choose(self, rows: list[int]) -> None:
        """Go on with these sequences only."""
        self.state = map_state(lambda x: x[rows], self.state if self.decoder is None else tuple(self.decoder.state))
        self.decoder = Decoder(self.model, self.state) if self.decoder else None


def read_packed(model: CausalLM, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, tuple]:
    """What the head reads of each prompt's last token, [N, d_model], and the state of N sequences."""
    if not len(prompts) or not all(map(len, prompts)):
        raise ValueError(f"prompts are of {list(map(len, prompts))} tokens, expected at least one in every prompt")
    device = model.device
    row = torch.tensor([[token for prompt in prompts for token in prompt]], device=device)
    cu_seqlens = F.pad(torch.tensor(list(map(len, prompts))).cumsum(0), (1, 0)).to(device)
    x, state = model.hidden(row, cu_seqlens=cu_seqlens)
    return last(x, cu_seqlens), state


def row_generators(sampling: Sampling, rows: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(sampling.seed + i) for i in range(rows)]


def seen_tokens(prompts: Sequence[Sequence[int]], logits: Tensor, sampling: Sampling) -> Tensor | None:
    """[N, vocab_size], true for tokens of the prompt; None if nobody will ask."""
    if sampling.repetition_penalty == 1:
        return None
    seen = torch.zeros_like(logits, dtype=torch.bool)
    for row, prompt in zip(seen, prompts, strict=True):
        row[list(prompt)] = True
    return seen


def mark(seen: Tensor | None, tokens: Tensor) -> None:
    """tokens: [N], seen from now on."""
    if seen is not None:
        seen.scatter_(1, tokens[:, None], True)


UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # what decoders write for bytes that are no character, or not yet one
LONGEST = 3  # bytes of a character that still lacks one


class TextStream:
    """`push` each token and show what it returns, then `finish`. All pieces together are the text of the tokens.

    prompt: the tokens before, which decide whether a word begins with a space. stop: the text ends before any of these;
    `stopped` then is true.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stop: Sequence[str] = ()):
        self.tokenizer, self.stop = tokenizer, stop
        self.window = list(prompt)  # tokens whose text is known, as context, then those whose text is still open
        self.known = len(self.window)
        self.given = len(self._text())  # characters of the window's text that have been passed on
        self.held = ""  # the beginning of a stop string, perhaps
        self.stopped = False

    def push(self, token: int) -> str:
        self.window.append(token)
        text = self._text()
        missing = min(LONGEST, len(text) - len(text.rstrip(UNKNOWN)))
        new, self.given = text[self.given : len(text) - missing], max(self.given, len(text) - missing)
        if not missing:
            self._forget(len(self.window), 0)
        elif len(self.window) > self.known + 2 * LONGEST and self._is_boundary(len(self.window) - LONGEST, text):
            self._forget(len(self.window) - LONGEST, missing)
        return self._before_stop(new)

    def finish(self) -> str:
        """What was held back, at the end of the tokens."""
        text = self._before_stop(self._text()[self.given :])
        return text if self.stopped else text + self.held

    def _text(self) -> str:
        return self.tokenizer.decode(self.window)

    def _is_boundary(self, at: int, text: str) -> bool:
        """Whether no character reaches across. Bytes that are no UTF-8 would else keep the window open for ever."""
        return self.tokenizer.decode(self.window[:at]) + self.tokenizer.decode(self.window[at:]) == text

    def _forget(self, known: int, missing: int) -> None:
        """The context, in favour of the tokens that follow it up to `known`; missing: characters not passed on."""
        self.window, self.known = self.window[self.known :], known - self.known
        self.given = len(self._text()) - missing

    def _before_stop(self, new: str) -> str:
        if self.stopped:
            return ""
        text, self.held, self.stopped = cut_at_stop(self.held + new, self.stop)
        return text


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, str, bool]:
    """What comes before a stop string, what may be the beginning of one, and whether there is one.

    Of several the one that ends first counts, so that the result does not depend on how the text was cut into pieces.
    """
    ends = [(text.index(s) + len(s), -len(s)) for s in stop if s in text]
    if ends:
        return text[: sum(min(ends))], "", True
    open_ended = (n for s in stop for n in range(1, len(s)) if text.endswith(s[:n]))
    free = len(text) - max(open_ended, default=0)
    return text[:free], text[free:], False
