from dataclasses import replace

import pytest
import torch

from gated_deltanet import CausalLM, get_preset
from gated_deltanet.eval import prefix_sharing
from gated_deltanet.eval.prefix_sharing import Group, Request, alone, batches, score, shared
from gated_deltanet.models.presets import MIXERS


def tokens(length: int, seed: int) -> list[int]:
    return torch.randint(257, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def questions() -> list[Request]:
    """Four options that share a context, two whose context differs at its end, one by itself, two that are equal."""
    context, other = tokens(50, 0), tokens(41, 1)
    options = [Request(context + tokens(n, n), n) for n in (1, 3, 9, 14)]
    blanks = [Request(other + tokens(5, n) + tokens(12, 7), 12) for n in (2, 3)]
    return [*options, *blanks, Request(tokens(30, 8), 29), *[Request(tokens(33, 9), 1)] * 2]


def model_of(architecture: str) -> CausalLM:
    torch.manual_seed(0)
    return CausalLM(replace(get_preset(f"{architecture}-nano"), vocab_size=257)).eval()


def test_options_of_a_question_are_one_group():
    groups = {tuple(sorted(group.members)): group.prefix for group in shared(questions())}
    assert groups == {(0, 1, 2, 3): 49, (4, 5): 41, (6,): 0, (7, 8): 31}


def test_a_question_is_not_joined_by_one_that_shares_little():
    common = tokens(20, 0)
    requests = [Request(common + tokens(60, n // 4) + [n], 1) for n in range(8)]
    assert sorted(group.prefix for group in shared(requests)) == [79, 79]


def test_groups_have_no_more_members_than_allowed(monkeypatch):
    monkeypatch.setattr(prefix_sharing, "MEMBERS", 3)
    groups = shared([Request([*tokens(40, 0), n], 1) for n in range(8)])
    assert sorted(len(group.members) for group in groups) == [2, 3, 3]


def test_batches_hold_every_group_once_and_never_mix():
    requests = questions()
    groups = shared(requests)
    found = list(batches(requests, groups, 100))
    assert sorted(member for batch in found for group in batch for member in group.members) == list(range(9))
    assert all(len({bool(group.prefix) for group in batch}) == 1 for batch in found)
    assert len(found) == 3  # 49, 41; 31; and the one by itself


@pytest.mark.parametrize("architecture", [*list(MIXERS)[:10], "linear-attention", "longhorn"])
def test_sharing_changes_no_score(architecture):
    model, requests = model_of(architecture), questions()
    plain, joined = (dict(score(model, requests, share=share)) for share in (False, True))
    assert sorted(plain) == sorted(joined) == list(range(len(requests)))
    for i in plain:
        assert joined[i].logprob == pytest.approx(plain[i].logprob, abs=1e-5, rel=1e-6)
        assert joined[i].greedy == plain[i].greedy


def test_scores_are_those_of_the_plain_model(monkeypatch):
    monkeypatch.setattr(prefix_sharing, "PIECE", 5)
    model, requests = model_of("gdn-h1"), questions()
    for i, found in score(model, requests, tokens=64):
        row, n = torch.tensor([requests[i].tokens]), requests[i].scored
        with torch.no_grad():
            logprobs = model(row[:, :-1])[0].double().log_softmax(-1)[0, -n:]
        wanted = row[0, -n:]
        assert found.logprob == pytest.approx(float(logprobs.gather(1, wanted[:, None]).sum()), rel=1e-5)
        assert found.greedy == bool((logprobs.argmax(-1) == wanted).all())


def test_nothing_shared_is_every_request_alone():
    assert alone(questions()[:2]) == [Group(0, [0]), Group(0, [1])]
