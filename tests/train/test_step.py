import pytest
import torch
from small import HERE

from gated_deltanet.data import tokenizer
from gated_deltanet.data.corpus import from_texts
from gated_deltanet.data.rows import Rows, batches, n_targets
from gated_deltanet.layers import GatedDeltaNet
from gated_deltanet.models import CausalLM, ModelConfig
from gated_deltanet.train.parallel import Objective
from gated_deltanet.train.step import gradient
from gated_deltanet.train.validation import some_documents, validate

CONFIG = ModelConfig(16, 2, (GatedDeltaNet(2, 4, 8),), 24, 257)


@pytest.fixture
def rows():
    """The last row has few targets: parts of a batch weigh unequally."""
    corpus, _ = from_texts(["a" * 30, "bc" * 20, "def" * 9, "g" * 3], tokenizer.get("bytes"), valid=0.0)
    return Rows(corpus, 20, seed=3)


def gradient_of(rows, micro):
    torch.manual_seed(0)
    objective, size = Objective(CausalLM(CONFIG).double()), rows.per_epoch
    parts = list(batches(rows, 0, size=size, micro=micro))
    step = gradient(objective, parts, n_targets(rows, 0, size=size), clip=1e9, dtype=torch.float32, place=HERE)
    return step, [p.grad for p in objective.parameters()]


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_gradient_does_not_depend_on_how_the_batch_is_cut(micro, rows):
    assert rows.positions % rows.length
    (step, grads), (expected, all_at_once) = gradient_of(rows, micro), gradient_of(rows, rows.per_epoch)
    assert step == pytest.approx(expected, rel=1e-12)
    for ours, theirs in zip(grads, all_at_once, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-14)


def test_loss_is_the_mean_over_targets(rows):
    torch.manual_seed(0)
    model = CausalLM(CONFIG).double()
    (batch,) = batches(rows, 0, size=rows.per_epoch, micro=100)
    expected = model.loss(batch.tokens, batch.targets, cu_seqlens=batch.cu_seqlens)
    assert gradient_of(rows, 2)[0].loss == pytest.approx(float(expected.detach()), rel=1e-12)


def test_clipped_gradient_has_the_largest_norm_allowed(rows):
    objective = Objective(CausalLM(CONFIG))
    parts = list(batches(rows, 0, size=4, micro=2))
    step = gradient(objective, parts, n_targets(rows, 0, size=4), clip=0.01, dtype=torch.float32, place=HERE)
    norm = torch.stack([p.grad.norm() for p in objective.parameters() if p.grad is not None]).norm()
    assert step.grad_norm > 0.01
    assert float(norm) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("micro", [1, 3])
def test_validation_is_the_mean_over_all_positions(micro, rows):
    model = CausalLM(CONFIG)
    valid = Rows(rows.corpus, 20, seed=None)
    found = validate(Objective(model), valid, micro, dtype=torch.float32, place=HERE)
    (batch,) = batches(valid, 0, size=valid.per_epoch, micro=100)
    expected = float(model.loss(batch.tokens, batch.targets, cu_seqlens=batch.cu_seqlens).detach())
    assert found.loss == pytest.approx(expected, rel=1e-5)
    n_bytes = 30 + 40 + 27 + 3
    assert found.bits_per_byte == pytest.approx(expected * valid.positions / n_bytes / 0.693147, rel=1e-5)


def test_validation_takes_whole_documents_and_at_least_one(rows):
    assert len(some_documents(rows.corpus, 10**6)) == 4
    assert len(some_documents(rows.corpus, 1)) == 1
    some = some_documents(rows.corpus, 60)
    assert 0 < some.positions.sum() <= 60
