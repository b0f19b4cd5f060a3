"""The portable arithmetic compiles for GPUs, and stays there what it is written as."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.kernels.machine_code import CSRC, NVCC

PROGRAM = """
#include "portable/activations.h"
#include "portable/attention.h"
#include "portable/lane_sum.h"
#include "portable/number_formats.h"
#include "portable/ordered_key.h"
#include "portable/rotary.h"
#include "portable/states.h"
#include "portable/vocabulary.h"

using namespace vllm_fork;

__global__ void functions(float* x) {
  x[0] = exponential(x[0]);
  x[1] = exponential2(x[1]);
  x[2] = logarithm(x[2]);
  x[3] = hyperbolic_tangent(x[3]);
  x[4] = sigmoid(x[4]);
  x[5] = error_function(x[5]);
  x[6] = silu(x[6]) + quick_gelu(x[7]) + gelu(x[8]) + gelu_tanh(x[9]) + squared_relu(x[10]);
  x[11] = lane_sum(300, [x](int64_t k, float s) { return fused(x[k], x[k], s); });
  x[12] = from_float16(to_float16(x[12])) + from_bfloat16(to_bfloat16(to_float32(x[13])));
  x[14] = gumbel_noise(bits_of(x[14])) + static_cast<float>(probability_count(x[15]));
  x[16] = static_cast<float>(ordered_key(x[16])) / square_root(x[17]);
  rotary_entry(static_cast<int64_t>(x[18]), x[19], 1.0, x + 20, x + 21);
  rotate_pair(x + 22, x + 23, x[20], x[21]);
}

__global__ void states(float* x) {
  const float decay = state_decay(time_step(x[0], x[1], x[2], x[3]));
  x[4] = next_state(x[4], decay, reciprocal_length(x[5]), correction(x[6], x[7], decay, x[8]));
}

__global__ void attention(float* x, int32_t* n) {
  const ScoreRule rule = score_rule(x[0], x[1], x[2], 7);
  const float unit = unit_of(scale_of(bits_of(x[3])));
  const Weight weight(
      score(joined(n[0], n[1]), unit, rule.factor, rule.cap, rule.slope, x[4]));
  const Rescaling by(n[2], weight.exponent);
  n[3] = weight_in_sum(weight.fraction, n[4]) + weight_of_value(weight.fraction, n[5]);
  n[6] = upper_digit(n[6]) + lower_digit(n[7]);
  x[5] = to_integers(scale_of(bits_of(x[5]))) * by.kept + by.added;
}
"""


@pytest.mark.parametrize("architecture", [80, 90, 120])
def test_ptx(tmp_path: Path, architecture: int) -> None:
    """Rounded operations alone: none approximates, flushes, or is fused where it should not be."""
    source, output = tmp_path / "program.cu", tmp_path / "program.ptx"
    source.write_text(PROGRAM)
    command = [str(NVCC), "-ptx", "-std=c++17", "-O3", "-fmad=false", f"-I{CSRC}"]
    done = subprocess.run(
        [*command, f"-arch=compute_{architecture}", str(source), "-o", str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    operations = set(re.findall(r"^\s+([a-z0-9.]+\.f(?:32|64))\s", output.read_text(), re.M))
    assert not [name for name in operations if ".approx" in name or ".ftz" in name]
    arithmetic = {name for name in operations if re.match(r"(add|sub|mul|div|fma|sqrt|rcp)", name)}
    allowed = {f"{name}.rn.f32" for name in ("add", "sub", "mul", "div", "fma", "sqrt", "rcp")}
    # In double precision nothing is fused.
    allowed |= {f"{name}.rn.f64" for name in ("add", "sub", "mul", "div", "rcp")}
    allowed |= {name.replace(".rn", "") for name in allowed if not name.startswith("fma")}
    assert arithmetic <= allowed
    assert {"fma.rn.f32", "div.rn.f32", "sqrt.rn.f32"} <= arithmetic
