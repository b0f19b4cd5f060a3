"""Rotary frequencies: Transformers' to rounding, and the bits that are committed."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding

from tests.deterministic.digests import FILES, LONGROPE, VARIANTS, config_of, frequency_digests
from vllm.deterministic.positions.rope import (
    dynamic_frequencies,
    longrope_frequencies,
    rotary_frequencies,
    yarn_frequencies,
    yarn_scale,
)
from vllm.deterministic.positions.rope_config import frequencies_of

ROUNDINGS = 10 * 2.0**-24
"""Transformers rounds each step to float32."""


@pytest.mark.parametrize("name", VARIANTS)
def test_frequencies_are_those_of_transformers(name: str) -> None:
    parameters, longest = VARIANTS[name]
    config = config_of(parameters)
    make: Any = ROPE_INIT_FUNCTIONS.get(
        parameters["rope_type"], GPTNeoXRotaryEmbedding.compute_default_rope_parameters
    )
    length = longest or config.max_position_embeddings
    frequencies, scale = frequencies_of(config, max_length=longest)
    config.max_position_embeddings = parameters.get("max_trained_positions", 131072)
    expected, expected_scale = make(config, seq_len=length)
    assert frequencies.dtype == torch.float32
    assert frequencies.shape == expected.shape
    # At the end of YaRN's ramp, what is left of the whole frequency was rounded relative to 1.
    bound = ROUNDINGS + (parameters["factor"] * 2.0**-24 if "yarn" in name else 0)
    assert ((frequencies - expected) / expected).abs().max() < bound
    assert scale == pytest.approx(expected_scale, rel=2.0**-50)


def test_bits_are_those_committed() -> None:
    assert frequency_digests() == json.loads(FILES["frequencies"].read_text())


def test_parameters_of_a_type_of_layers() -> None:
    config = config_of({"rope_type": "default", "rope_theta": 10000.0})
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0}
    config.rope_parameters = {"full_attention": linear, "sliding_attention": None}
    frequencies, _ = frequencies_of(config, "full_attention")
    assert torch.equal(frequencies, rotary_frequencies(128, 10000.0) / 8)


def test_dynamic_scaling_is_none_at_the_trained_length() -> None:
    same = dynamic_frequencies(64, 10000.0, 4.0, 2048, 2048)
    assert torch.equal(same, rotary_frequencies(64, 10000.0))
    assert (dynamic_frequencies(64, 10000.0, 4.0, 4096, 2048)[1:] < same[1:]).all()


def test_yarn_leaves_the_fast_and_divides_the_slow() -> None:
    frequencies = yarn_frequencies(128, 10000.0, 4.0, 4096)
    default = rotary_frequencies(128, 10000.0)
    assert torch.equal(frequencies[:20], default[:20])
    assert torch.equal(frequencies[50:], default[50:] / 4)


def test_a_scale_is_the_number_nearest_to_the_exact_one() -> None:
    assert yarn_scale(1.0) == 1.0
    assert abs(yarn_scale(40.0) - (0.1 * math.log(40.0) + 1)) <= 2 * math.ulp(1.0)
    assert yarn_scale(40.0, attention_factor=2) == 2.0


def test_what_has_no_portable_form_is_refused() -> None:
    config = config_of({"rope_type": "default", "rope_theta": 10000.0})
    config.rope_parameters = {"rope_type": "proportional", "rope_theta": 10000.0}
    with pytest.raises(ValueError, match="no rotary embedding of type 'proportional'"):
        frequencies_of(config)
    config.rope_parameters = {"rope_type": "default", "mrope_section": [16, 24, 24]}
    with pytest.raises(ValueError, match="of several positions"):
        frequencies_of(config)
    with pytest.raises(ValueError, match="needs 32 factors, but there are 64"):
        longrope_frequencies(64, 10000.0, LONGROPE["long_factor"])
