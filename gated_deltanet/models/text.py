"""The text of tokens as they come: whole characters, and nothing of a stop string."""

from collections.abc import Sequence

from tokenizers import Tokenizer

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
