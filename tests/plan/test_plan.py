import pytest
import torch

from gated_deltanet.layers import MIXERS as KINDS
from gated_deltanet.layers import Attention
from gated_deltanet.models import CausalLM, get_preset
from gated_deltanet.models.presets import MIXERS
from gated_deltanet.plan import sharding
from gated_deltanet.plan.devices import GPUS, available_bytes, get_gpu
from gated_deltanet.plan.estimate import USABLE, Job, estimate, largest, of_gpus, of_this_machine
from gated_deltanet.plan.memory import Step, kept, train_memory
from gated_deltanet.plan.sharding import Sharding, parse_sharding
from gated_deltanet.plan.speed import cpu_rates, gpu_rates, train_flops

H100 = GPUS["h100"]


def made(preset="gdn-1.3b", gpus=64, parallel="fsdp", **changes):
    job = Job(get_preset(preset), tokens=10**11, length=4096, batch_tokens=2**19)._replace(**changes)
    return estimate(job, of_gpus(H100, gpus, parse_sharding(parallel, gpus)))


@pytest.mark.parametrize("architecture", ["gdn", "mamba"])
def test_parameters_and_flops_are_those_of_the_model(architecture):
    config = get_preset(f"{architecture}-nano")
    model = CausalLM(config)
    found = made(f"{architecture}-nano", length=64)
    assert found["parameters"] == sum(p.numel() for p in model.parameters())
    matrices = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    matrices += model.embedding.weight.numel()  # the head
    mixers = sum(config.mixer(layer).flops(64) for layer in range(config.n_layers))
    assert train_flops(config, 64) == pytest.approx(6 * matrices + 3 * mixers, rel=0.02)  # convolutions besides


def test_every_mixer_has_a_rate():
    mixers = [mixer for name in MIXERS for mixer in get_preset(f"{name}-nano").mixers]
    assert {type(mixer) for mixer in mixers} == set(KINDS.values())
    assert {mixer.window for mixer in mixers if isinstance(mixer, Attention)} == {None, 128}
    for mixer in mixers:
        assert 0 < cpu_rates(1e11).own(mixer) < 1e11
        assert 0 < gpu_rates(H100).own(mixer) < H100.flops


@pytest.mark.parametrize("architecture", MIXERS)
def test_kept_activations_are_counted_for_every_architecture_and_linear_in_the_tokens(architecture):
    config = get_preset(f"{architecture}-nano")
    for precision in ("gpu", "bfloat16"):
        one, two, four = (sum(kept(config, Step(n, 128, precision))) for n in (1, 2, 4))
        assert 0 < one < two
        assert four - two == pytest.approx(2 * (two - one), rel=0.01)


@pytest.mark.parametrize("architecture", ["gdn", "mamba", "gdn-h1"])
def test_predicted_memory_is_that_of_a_step(architecture):
    from gated_deltanet.bench.train import Cell, Trial

    cell = Cell(f"{architecture}-nano", 2048, 2)
    measured = Trial(cell, "float32").peak_bytes()
    if measured is None or available_bytes() is None:
        pytest.skip("this system does not tell how much memory is held")
    predicted = train_memory(get_preset(cell.preset), Step(cell.batch, cell.length, "float32"), Sharding(1, 1)).total
    assert 0.5 < measured / predicted < 1.5


def test_sharding_divides_weights_and_replication_does_not():
    fsdp, ddp, hsdp = (made(parallel=parallel)["memory"] for parallel in ("fsdp", "ddp", "hsdp:8x8"))
    assert ddp["optimiser"] == 8 * hsdp["optimiser"] == 64 * fsdp["optimiser"]
    assert ddp["activations"] == fsdp["activations"]
    assert ddp["weights"] == 4 * made()["parameters"]


def test_bytes_communicated():
    assert sharding.shard_bytes(100, Sharding(1, 4), micro_steps=3) == 3 * 100 * 8 * 3 / 4
    assert sharding.replica_bytes(100, Sharding(4, 1)) == 2 * 4 * 100 * 3 / 4
    alone = made(gpus=1)
    assert alone["bytes_communicated_per_step"] == alone["communication_seconds"] == 0


def test_network_between_nodes_is_slower_than_links_within_one():
    within = sharding.seconds(10**9, Sharding(1, 8), 1, H100)
    beyond = sharding.seconds(10**9, Sharding(1, 16), 1, H100)
    apart = sharding.seconds(10**9, Sharding(2, 8), 1, H100) - within  # one network card for each pair
    assert within < beyond
    assert apart == pytest.approx(10**9 / 8 * 4 / (sharding.ACHIEVED * H100.network))


def test_longest_length_fits_and_a_longer_one_does_not():
    longest = made()["longest_length"]
    at = {"batch_tokens": 2**26, "micro_batch": 1}
    assert made(length=longest, **at)["fits"]
    assert not made(length=longest + 256, **at)["fits"]
    assert made(checkpointing=True)["longest_length"] > 3 * longest


def test_micro_batch_is_the_largest_that_fits():
    found = made(gpus=1)
    assert 1 < found["micro_batch"] < found["sequences_per_device"] == 128
    assert found["memory"]["total"] <= USABLE * H100.memory
    assert not made(gpus=1, micro_batch=found["micro_batch"] + 1)["fits"]


def test_what_does_not_fit_is_said():
    found = estimate(Job(get_preset("gdn-1.3b"), 10**9, 4096, 2**19), of_gpus(GPUS["rtx4090"], 1, Sharding(1, 1)))
    assert not found["fits"]
    assert found["longest_length"] is None or found["longest_length"] < 4096


def test_days_are_steps_times_seconds():
    found = made()
    assert found["days"] * 86400 == pytest.approx(found["steps"] * found["step_seconds"])
    assert found["tokens_per_step"] == 2**19
    assert 0.3 < found["mfu"] < 0.5


def test_this_machine_has_its_own_rates():
    job = Job(get_preset("gdn-tiny"), 10**6, 1024, 4096)
    slow, fast = (estimate(job, of_this_machine(flops, 2**33, "float32")) for flops in (1e11, 2e11))
    assert slow["step_seconds"] == pytest.approx(2 * fast["step_seconds"])
    assert slow["mfu"] == pytest.approx(fast["mfu"])


def test_bisection_finds_the_edge():
    assert [largest(lambda n, edge=edge: n <= edge, 10) for edge in (0, 1, 7, 10, 99)] == [None, 1, 7, 10, 10]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parse_sharding("hsdp:3x5", 16), "expected R × S = 16"),
        (lambda: parse_sharding("zero3", 8), "expected fsdp, ddp or hsdp:RxS"),
        (lambda: get_gpu("h1000"), "--gpu is 'h1000', expected perhaps h100"),
        (lambda: made(gpus=256), "--batch-tokens is 524,288, expected at least one sequence a device, 256 × 4096"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
