"""The arithmetic of speed against the paper's Fig. 3: 1.3B models on one H100."""

import pytest

from gated_deltanet.models import get_preset
from gated_deltanet.paper import FIG_3, FIG_3_SHAPES
from gated_deltanet.plan import GPUS
from gated_deltanet.plan.speed import gpu_rates, seconds_per_token, train_flops

HYBRIDS = ("gdn-h1", "gdn-h2", "samba")  # none of their curves was used to choose the rates
H100 = GPUS["h100"]


def predicted(architecture: str) -> list[float]:
    """Thousand tokens per second, for each length."""
    config = get_preset(f"{architecture}-1.3b")
    return [1e-3 / seconds_per_token(config, length, gpu_rates(H100)) for length, _ in FIG_3_SHAPES]


@pytest.mark.parametrize("architecture", FIG_3)
def test_every_point_of_the_figure_is_met(architecture):
    tolerance = 0.18 if architecture in HYBRIDS else 0.02
    assert predicted(architecture) == pytest.approx(FIG_3[architecture], rel=tolerance)


@pytest.mark.parametrize("architecture", FIG_3)
def test_figure_implies_a_plausible_share_of_the_peak(architecture):
    config = get_preset(f"{architecture}-1.3b")
    for (length, _), speed in zip(FIG_3_SHAPES, FIG_3[architecture], strict=True):
        assert 0.28 < train_flops(config, length) * 1e3 * speed / H100.flops < 0.5


def test_recurrent_lines_are_flat_and_the_transformers_falls():
    for architecture in ("deltanet", "gdn", "mamba", "mamba2"):
        first, *others = predicted(architecture)
        assert others == pytest.approx([first] * 3)
    fastest, *_, slowest = predicted("transformer")
    assert slowest < fastest / 2
    for architecture in HYBRIDS:
        fastest, *_, slowest = predicted(architecture)
        assert 0.85 * fastest < slowest < fastest


def test_checkpointing_costs_a_forward_pass_of_the_blocks():
    config, rates = get_preset("gdn-1.3b"), gpu_rates(H100)
    ratio = seconds_per_token(config, 4096, rates, checkpointing=True) / seconds_per_token(config, 4096, rates)
    assert 1.3 < ratio < 4 / 3
