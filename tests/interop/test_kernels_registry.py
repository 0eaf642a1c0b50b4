"""transformers' own models with the package kernels: our ops through its registry, and beside it."""

import pytest
import torch

import gated_deltanet

pytest.importorskip("transformers")

from stock_models import MORE, some, stock, tokens
from transformers.utils.import_utils import is_kernels_available

from gated_deltanet.interop.transformers import kernel_mapping

kernels = pytest.importorskip("kernels")
if not is_kernels_available():
    pytest.skip(f"kernels {kernels.__version__} is not as transformers wants it", allow_module_level=True)


def kernelize(model, mode=kernels.Mode.INFERENCE):
    return kernels.kernelize(model, mode=mode, device="cpu")


@torch.no_grad()
@pytest.mark.parametrize("model_type", MORE)
def test_kernelized_models_compute_what_accelerated_ones_do(model_type):
    batch, model = tokens(2, 43), stock(model_type)
    own = model(batch).logits
    with gated_deltanet.accelerate_transformers():
        expected = stock(model_type)(batch).logits
        written = stock(model_type).generate(batch, max_new_tokens=9, do_sample=False)
    with kernels.use_kernel_mapping(kernel_mapping()):
        kernelize(model)
    try:
        assert torch.equal(model(batch).logits, expected)
        assert torch.equal(model.generate(batch, max_new_tokens=9, do_sample=False), written)
    finally:
        kernelize(model)  # without the mapping: functions are the process's
    assert torch.equal(model(batch).logits, own)


def test_kernelized_models_learn_what_accelerated_ones_do():
    batch, model = tokens(2, 43), stock(*some("qwen3_5_text")).train()

    def grads():
        return torch.autograd.grad(model(batch, labels=batch).loss, [*model.parameters()])

    with gated_deltanet.accelerate_transformers():
        expected = grads()
    with kernels.use_kernel_mapping(kernel_mapping()):
        kernelize(model, kernels.Mode.TRAINING)
    try:
        assert all(map(torch.equal, grads(), expected))
    finally:
        kernelize(model)


@torch.no_grad()
def test_kernelize_without_the_mapping_changes_nothing():
    (name,) = some("qwen3_5_text")
    batch, model = tokens(2, 43), stock(name)
    own = model(batch).logits
    model.set_use_kernels(True)
    assert torch.equal(model(batch).logits, own)
    with gated_deltanet.accelerate_transformers():
        ours = stock(name)(batch).logits
        model.set_use_kernels(True)
        assert torch.equal(model(batch).logits, ours)
    assert torch.equal(model(batch).logits, own)
