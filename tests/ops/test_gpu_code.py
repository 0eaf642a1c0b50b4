"""What `make check-gpu-code` compiles, and what it would find."""

import json

import pytest

gpu_code = pytest.importorskip("gpu_code", reason="triton is not installed", exc_type=ImportError)

LOADED = """
    %0 = tt.load %p : tensor<64x64x!tt.ptr<bf16>>
    %1 = tt.trans %0 {order = array<i32: 1, 0>} : tensor<64x64xbf16> -> tensor<64x64xbf16>
    %2 = tt.dot %0, %1, %c, inputPrecision = tf32 : tensor<64x64xbf16> * tensor<64x64xbf16> -> tensor<64x64xf32>
"""
ROUNDED = """
    %3 = arith.truncf %2 : tensor<64x64xf32> to tensor<64x64xbf16>
    %4 = tt.trans %3 {order = array<i32: 1, 0>} : tensor<64x64xbf16> -> tensor<64x64xbf16>
"""
CARRIED = """
    %5:2 = scf.for %i = %a to %b step %s iter_args(%x = %c, %y = %c) -> (tensor<64x64xf32>, tensor<64x64xf32>)  : i32 {
      %6 = tt.dot %0, %1, %x : tensor<64x64xbf16> * tensor<64x64xbf16> -> tensor<64x64xf32>
      scf.yield %6, %y : tensor<64x64xf32>, tensor<64x64xf32>
    }
    %7 = tt.trans %5#0 {order = array<i32: 1, 0>} : tensor<64x64xf32> -> tensor<64x64xf32>
"""


def test_a_transposed_result_of_a_product_is_found():
    assert gpu_code.transposed_products(LOADED) == []
    assert gpu_code.transposed_products(LOADED + ROUNDED) == ["%4"]
    assert gpu_code.transposed_products(LOADED + CARRIED) == ["%7"]


@pytest.mark.parametrize("architecture", gpu_code.TARGETS)
@pytest.mark.parametrize("dtype", gpu_code.DTYPES)
def test_what_would_be_launched_is_every_kernel(architecture, dtype):
    launches = gpu_code.launches(architecture, dtype, 200, 400)
    assert {launch.kernel for launch in launches} == {
        "ut_transform",
        "state_pass",
        "chunk_output",
        "correction_gradient",
        "state_pass_backward",
        "score_gradients",
        "key_gradients",
        "recurrence",
        "recurrence_backward",
        "conv_forward",
        "last_inputs",
        "conv_backward",
        "past_gradient",
        "conv_step",
        "norm_forward",
        "norm_backward",
        "swiglu_forward",
        "swiglu_backward",
    }
    in_chunks = [launch.constants for launch in launches if "C" in launch.constants]
    assert {constants["PRECISION"] for constants in in_chunks} <= {"ieee", "tf32", "tf32x3"}
    assert all(constants["C"] * 200 * dtype.itemsize <= 32 * 1024 for constants in in_chunks)


def test_the_checked_targets_are_those_auto_takes():
    assert set(gpu_code.TARGETS) == set(gpu_code.gpu.compiled()["passed"])


def test_auto_takes_what_the_committed_table_says_compiled():
    document = json.loads((gpu_code.RESULTS / "code.json").read_text())
    assert gpu_code.gpu.compiled() == {"triton": document["triton"], "passed": gpu_code.passed(document["rows"])}


def test_a_target_and_dtype_with_anything_wrong_is_not_taken():
    row = {"target": "sm_80", "dtype": "bf16", "wrong": []}
    rows = [row, row | {"dtype": "fp32", "wrong": ["spills"]}, row | {"dtype": "fp32"}, row | {"target": "sm_90"}]
    assert gpu_code.passed(rows) == {"sm_80": ["bf16"], "sm_90": ["bf16"]}
