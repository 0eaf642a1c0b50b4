"""Any model for lm-evaluation-harness. Needs lm-eval: `pip install 'gated-deltanet[eval]'`.

Ours are scored over their state: texts become tokens as lm-eval's own Hugging Face path (`HFLM`) makes them, in windows
of the same length, so that scores of a model and of its export agree. Hugging Face's run by that path itself.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import LM, TemplateLM  # pyright: ignore[reportMissingImports]
from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]
from lm_eval.models.utils import normalize_gen_kwargs  # pyright: ignore[reportMissingImports]
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # pyright: ignore[reportMissingImports]
from tokenizers import Tokenizer
from tqdm import tqdm

from gated_deltanet.data.tokenizer import end_of_text
from gated_deltanet.models.generate import generate
from gated_deltanet.models.model import CausalLM
from gated_deltanet.models.sampling import Sampling
from gated_deltanet.result import Answers

from .hf_model import HFModel
from .model import Model, OurModel
from .prefix_sharing import SEQUENCES, Request, Score, score

BATCH = 8  # sequences of HFLM's batches
MAX_LENGTH = 2048  # HFLM's for a model that names none
TEXTS = 4  # whose windows are batched together
GENERATED = 256  # tokens, unless a task says how many
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def lm_eval_model(model: Model | LM, *, max_length: int | None = None, share: bool = True) -> LM:
    """A model as lm-eval asks for it. One of lm-eval's own is returned as it is.

    max_length: None: the model's own if it names one, else 2048. share: of `Harness`.
    """
    if isinstance(model, LM):
        return model
    if isinstance(model, OurModel):
        return Harness(model.model, model.tokenizer, max_length=max_length or MAX_LENGTH, share=share)
    if isinstance(model, HFModel):
        build: Any = HFLM  # whose decorator hides what it takes
        return build(model.model, tokenizer=model.tokenizer, batch_size=BATCH, max_length=max_length)
    raise TypeError(f"model is a {type(model).__name__}, expected one of `eval.open`, or an LM of lm-eval")


class Harness(TemplateLM):
    """A `CausalLM` and its tokenizer as lm-eval asks for them.

    Every text begins with the end of text, as documents do in training, and as the exported tokenizer begins them.
    max_length: tokens the model is shown at most; of longer texts the last ones. share: read common prefixes once.
    tokens: read at once, about.
    """

    def __init__(
        self,
        model: CausalLM,
        tokenizer: Tokenizer,
        *,
        max_length: int = MAX_LENGTH,
        share: bool = True,
        tokens: int = 4096,
    ):
        super().__init__()
        self.model, self.tokenizer, self.end = model.eval(), tokenizer, end_of_text(tokenizer)
        self.max_length, self.share, self.tokens = max_length, share, tokens

    @property
    def eot_token_id(self) -> int:
        return self.end

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        ids = self.tokenizer.encode(string, add_special_tokens=False).ids
        return ids if add_special_tokens is False else [self.end, *ids]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        if empty := next((texts for texts, _, scored in requests if not scored), None):
            raise ValueError(f"{empty} has no tokens to score, expected a continuation that adds some")
        wanted = [self._request(context, scored) for _, context, scored in requests]
        found: dict[int, Score] = {}
        for i, result in self._scores(wanted, disable_tqdm):
            found[i] = result
            self.cache_hook.add_partial("loglikelihood", requests[i][0], tuple(result))
        return [(found[i].logprob, found[i].greedy) for i in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Some texts at a time, whose windows are batched: what is done is kept if the rest is killed."""
        texts: list[str] = [request.args[0] for request in requests]
        sums: list[float] = []
        for start in tqdm(range(0, len(texts), TEXTS), desc="texts", disable=disable_tqdm or None):
            for text, logprob in zip(texts[start:], self._rolling(texts[start : start + TEXTS]), strict=False):
                sums.append(logprob)
                self.cache_hook.add_partial("loglikelihood_rolling", (text,), logprob)
        return sums

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Prompts of like length together, those with the same settings only."""
        prompts = [self.tok_encode(request.args[0]) for request in requests]
        order = sorted(range(len(requests)), key=lambda i: (str(requests[i].args[1]), -len(prompts[i])))
        found: dict[int, str] = {}
        with tqdm(total=len(requests), desc="generating", disable=disable_tqdm or None) as bar:
            for some in alike(order, prompts, [request.args[1] for request in requests], self.tokens):
                for i, text in zip(some, self._continue(prompts, requests, some), strict=True):
                    found[i] = text
                    self.cache_hook.add_partial("generate_until", requests[i].args, text)
                bar.update(len(some))
        return [found[i] for i in range(len(requests))]

    def _request(self, context: list[int], scored: list[int]) -> Request:
        """The last max_length + 1 tokens: the model is not shown the last one."""
        if len(scored) > self.max_length:
            raise ValueError(f"{len(scored)} tokens to score, expected at most --max-length, {self.max_length}")
        return Request((context + scored)[-(self.max_length + 1) :], len(scored))

    def _rolling(self, texts: list[str]) -> list[float]:
        windows = [(text, window) for text, string in enumerate(texts) for window in self._windows(string)]
        sums = [0.0] * len(texts)
        for i, result in self._scores([window for _, window in windows], quiet=True):
            sums[windows[i][0]] += result.logprob
        return sums

    def _windows(self, string: str) -> list[Request]:
        """HFLM's: the beginning is scored too, as if it followed the end of another text."""
        tokens = self.tok_encode(string)
        windows = get_rolling_token_windows(tokens, self.end, max_seq_len=self.max_length, context_len=1)
        return [self._request(*make_disjoint_window(window)) for window in windows]

    def _scores(self, requests: list[Request], quiet: bool):
        scores = score(self.model, requests, share=self.share, tokens=self.tokens)
        return tqdm(scores, desc="scoring", total=len(requests), disable=quiet or None)  # None: unless a terminal

    def _continue(self, prompts: list[list[int]], requests: list[Any], some: list[int]) -> list[str]:
        sampling = sampling_of(requests[some[0]].args[1])
        room = self.max_length - sampling.max_tokens
        if room < 1:
            raise ValueError(f"{sampling.max_tokens} tokens to generate, expected fewer than --max-length")
        rows = [prompts[i][-room:] for i in some]
        return [x.text for x in generate(self.model, rows, sampling, tokenizer=self.tokenizer, end=self.end)]


def sampling_of(settings: dict[str, Any]) -> Sampling:
    """lm-eval's generation_kwargs. Greedy unless do_sample."""
    given: dict[str, Any] = dict(normalize_gen_kwargs(settings, GENERATED))
    until, most, drawn = given.pop("until"), given.pop("max_gen_toks"), given.pop("do_sample")
    if other := set(given) - set(SAMPLING):
        raise ValueError(f"generation_kwargs has {', '.join(sorted(other))}, expected only {', '.join(SAMPLING)}")
    given["temperature"] = given.get("temperature", 1.0) if drawn else 0.0
    return Sampling(max_tokens=most, stop=tuple(x for x in until if x), **given)


def alike(order: list[int], prompts: list[list[int]], settings: list[Any], tokens: int) -> list[list[int]]:
    """Requests in this order, cut where settings change or a batch is full."""
    cut: list[list[int]] = []
    for i in order:
        full = cut and (len(cut[-1]) == SEQUENCES or sum(len(prompts[j]) for j in [*cut[-1], i]) > tokens)
        if not cut or full or settings[cut[-1][0]] != settings[i]:
            cut.append([])
        cut[-1].append(i)
    return cut


class AnswersKept(LM):
    """A model of lm-eval whose answers are kept as it makes them. lm-eval's own cache would be unpickled."""

    def __init__(self, model: Any, file: Path):
        """model: tells this one each answer as soon as it has it, as its cache hook."""
        super().__init__()
        self.model, self.answers = model, Answers(file)
        model.set_cache_hook(self)

    def add_partial(self, kind: str, asked: Iterable[Any], answer: Any) -> None:
        """Whoever calls it: the model for one answer, or `_answer` for those it did not tell."""
        if (question := question_of(kind, asked)) not in self.answers:
            self.answers.add({question: answer})

    def _answer(self, kind: str, requests: list[Any]) -> list[Any]:
        unknown = [request for request in requests if question_of(kind, request.args) not in self.answers]
        if unknown:
            for request, answer in zip(unknown, getattr(self.model, kind)(unknown), strict=True):
                self.add_partial(kind, request.args, answer)
        found = (self.answers[question_of(kind, request.args)] for request in requests)
        return [tuple(answer) if isinstance(answer, list) else answer for answer in found]

    def loglikelihood(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
        return self._answer("loglikelihood", requests)

    def loglikelihood_rolling(self, requests: list[Any], **_: Any) -> list[float]:
        return self._answer("loglikelihood_rolling", requests)

    def generate_until(self, requests: list[Any], **_: Any) -> list[str]:
        return self._answer("generate_until", requests)


def question_of(kind: str, asked: Iterable[Any]) -> str:
    return json.dumps([kind, *asked], sort_keys=True)
