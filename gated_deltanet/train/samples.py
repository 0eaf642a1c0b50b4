"""What the model writes, to be looked at while it learns."""

from tokenizers import Tokenizer

from gated_deltanet.data.tokenizer import end_of_text, prompt_ids
from gated_deltanet.models import CausalLM
from gated_deltanet.models.generate import generate
from gated_deltanet.models.sampling import Sampling


def sample(model: CausalLM, tokenizer: Tokenizer, prompt: str, tokens: int, seed: int) -> str:
    """A document that begins with the prompt."""
    end = end_of_text(tokenizer)
    sampling = Sampling(max_tokens=tokens, temperature=0.8, top_p=0.95, seed=seed)
    return prompt + generate(model, [prompt_ids(tokenizer, prompt)], sampling, tokenizer=tokenizer, end=end)[0].text
