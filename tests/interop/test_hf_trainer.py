"""transformers' Trainer over our models."""

import pytest
import torch
from hf_models import checkpointing_name, nano, tokens

transformers = pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM  # noqa: E402

from gated_deltanet.interop.huggingface import to_huggingface  # noqa: E402


class Documents(torch.utils.data.Dataset):
    """Four, of unequal length, padded on the right; the first tokens of each are not to be learned."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        row = tokens(24, seed=i)
        mask = (torch.arange(24) < 24 - 3 * i).long()
        return {"input_ids": row, "attention_mask": mask, "labels": row.masked_fill((mask == 0) | (row < 30), -100)}


def train(folder, steps, *, resume=False, batch=2, accumulate=1, lr=3e-3, **options):
    pytest.importorskip("accelerate", reason="Trainer needs accelerate, in the extra hf")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        save_steps=4,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        learning_rate=lr,
        lr_scheduler_type="constant",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    hf = to_huggingface(nano("gdn-h2"))
    trainer = transformers.Trainer(hf, arguments, train_dataset=Documents(), eval_dataset=Documents())
    trainer.train(resume_from_checkpoint=resume or None)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return trainer, losses


def test_trainer_overfits_and_evaluates(tmp_path):
    trainer, losses = train(tmp_path, 20, **{checkpointing_name(): True})
    assert all(block.gradient_checkpointing for block in trainer.model.model.layers)
    assert losses[-1] < 0.5 * losses[0]
    assert trainer.evaluate()["eval_loss"] < 0.5 * losses[0]
    AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-20")


def test_trainer_resumes_identically(tmp_path):
    whole, losses = train(tmp_path, 8)
    (tmp_path / "checkpoint-8").rename(tmp_path / "whole")
    resumed, again = train(tmp_path, 8, resume=True)
    assert again == losses
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_accumulated_gradients_equal_one_large_batch(tmp_path):
    """Of documents with unequal numbers of labels: each label counts the same."""
    large, _ = train(tmp_path / "a", 1, batch=4, lr=1e-3, optim="sgd")
    small, _ = train(tmp_path / "b", 1, batch=1, accumulate=4, lr=1e-3, optim="sgd")
    for a, b in zip(large.model.parameters(), small.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
