"""Conversations: text of which only the answers are learnt.

A row of jsonl is one if it has `prompt` and `answer`, which follow each other as they are, or `messages`, a list of
`role` and `content`, which a chat template lays out where the tokenizer's folder has one. Without one it is

    User: What is 2 + 2?

    Assistant: 4

with an empty line between messages. The answers, `role` assistant, are learnt, each with what ends it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tokenizers import Tokenizer

from gated_deltanet import files

from .tokenizer import end_of_text

TEMPLATE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"  # as Hugging Face names them
ASSISTANT = "assistant"


class Turn(NamedTuple):
    text: str
    learnt: bool
    marked: bool = False
    """Whether special tokens that are written in it are tokens, as a chat template means them."""


Content: TypeAlias = str | tuple[Turn, ...]  # of a document: a text, which is learnt as a whole, or turns


class ChatTemplate(NamedTuple):
    source: str
    """In Jinja, as Hugging Face has them."""
    end: str
    """What it writes as eos_token."""
    special: tuple[str, ...]
    """Tokens that no message may write."""

    @property
    def fingerprint(self) -> str:
        return sha256(self.source.encode()).hexdigest()[:32]


def text_of(content: Content) -> str:
    return content if isinstance(content, str) else "".join(turn.text for turn in content)


def learnt_bytes(content: Content) -> int:
    """Of UTF-8."""
    turns = (Turn(content, True),) if isinstance(content, str) else content
    return sum(len(turn.text.encode()) for turn in turns if turn.learnt)


def read_template(folder: str | Path) -> str | None:
    """The chat template in the folder of a tokenizer, if there is one."""
    if (file := Path(folder) / TEMPLATE).is_file():
        return files.read_text(file)
    if not (file := Path(folder) / TOKENIZER_CONFIG).is_file():
        return None
    found = files.read_json(file, strict=False).get("chat_template")
    if isinstance(found, list):  # several, by name
        found = next((each.get("template") for each in found if each.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def template_for(source: str | None, tokenizer: Tokenizer) -> ChatTemplate | None:
    """source: of a chat template; None: there is none."""
    if source is None:
        return None
    end, added = tokenizer.id_to_token(end_of_text(tokenizer)), tokenizer.get_added_tokens_decoder().values()
    return ChatTemplate(source, str(end), tuple(token.content for token in added if token.special))


def question_and_answer(prompt: object, answer: object) -> tuple[Turn, ...] | str:
    """The turns, or why there are none."""
    if not isinstance(prompt, str) or not isinstance(answer, str):
        return "prompt or answer that is no text"
    return merged([Turn(prompt, False), Turn(answer, True)]) if answer.strip() else "empty answer"


def conversation(messages: object, template: ChatTemplate | None) -> tuple[Turn, ...] | str:
    """The turns of messages, or why there are none."""
    if not isinstance(messages, list) or not all(is_message(each) for each in messages):
        return "messages that are no list of role and content"
    while messages and not is_answer(messages[-1]):
        messages = messages[:-1]  # nothing is learnt from it
    if not messages:
        return "no answer in the messages"
    if template is None:
        return merged(plain_layout(messages))
    if any(token in each["content"] for each in messages for token in template.special):
        return "special token written in a message"
    return templated(messages, template)


def is_message(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(name), str) for name in ("role", "content"))


def is_answer(message: Mapping[str, str]) -> bool:
    return message["role"] == ASSISTANT and bool(message["content"].strip())


def plain_layout(messages: Sequence[Mapping[str, str]]) -> list[Turn]:
    turns = []
    for i, each in enumerate(messages):
        end = "\n\n" if i + 1 < len(messages) else ""
        turns.append(Turn(f"{each['role'].capitalize()}:", False))
        turns.append(Turn(f" {each['content']}{end}", is_answer(each)))
    return turns


def templated(messages: Sequence[Mapping[str, str]], template: ChatTemplate) -> tuple[Turn, ...] | str:
    """An answer is what the messages up to it have more than those before it with the beginning of an answer."""
    turns, done = [], ""
    for i in (i for i, each in enumerate(messages) if is_answer(each)):
        before, after = (rendered(template, messages[: i + n], begin=not n) for n in (0, 1))
        if not before.startswith(done) or not after.startswith(before):
            return "chat template that changes earlier messages"
        turns += [Turn(before[len(done) :], False, True), Turn(after[len(before) :], True, True)]
        done = after
    return merged(turns)


def merged(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Neighbours of one kind as one text, which is encoded as a prompt is; without empty ones."""
    groups = groupby((turn for turn in turns if turn.text), key=lambda turn: turn[1:])
    return tuple(Turn("".join(turn.text for turn in group), *kind) for kind, group in groups)


def rendered(template: ChatTemplate, messages: Sequence[Mapping[str, str]], *, begin: bool) -> str:
    """begin: with the beginning of an answer. A document begins with the end of text anyway: bos_token is empty."""
    from jinja2 import TemplateError  # torch needs it, too

    values = {"messages": messages, "add_generation_prompt": begin, "bos_token": "", "eos_token": template.end}
    try:
        return compiled(template.source).render(**values)
    except (TemplateError, TypeError) as error:
        raise ValueError(f"the chat template cannot lay out messages: {error}") from error


@lru_cache(1)
def compiled(source: str) -> Any:
    """As Hugging Face compiles them; a template cannot reach beyond its values."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ValueError(f"the chat template is not Jinja as it should be: {error}") from error
