"""Random models of real shapes: they load, differ by seed alone, and say varied things."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tools import make_random_model as maker
from tools import model_shapes

PROMPTS = ("def ", "import os\n", "The quick brown fox")

PARAMETERS = {
    "opt-125m": 125_239_296,
    "gpt2": 124_439_808,
    "pythia-160m": 162_322_944,
    "tiny-starcoder": 164_144_128,  # its card says "164M", no more
    "tinyllama-1.1b": 1_100_048_384,
    "qwen2-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "mistral-7b": 7_241_732_096,
    "gemma2-2b": 2_614_341_888,
    "gemma3-1b": 999_885_952,
    "phi3-mini": 3_821_079_552,
    "falcon-7b": 6_921_720_704,
    "bloom-560m": 559_214_592,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v2-lite": 15_706_484_224,
    "internlm2-1.8b": 1_889_110_016,
}
"""Published numbers of parameters: wrong facts in a shape would not add up to them."""


@pytest.fixture(scope="module", params=model_shapes.SHAPES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(shape's name, folder of its narrow two-layer model), one model on disk at a time."""
    folder = tmp_path_factory.mktemp("random") / request.param
    maker.make_random_model(request.param, folder, num_layers=2, narrow=True)
    yield request.param, folder
    for path in folder.iterdir():
        path.unlink()


def digest(folder: Path) -> str:
    return sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def make(folder: Path, shape: str = "opt-125m", **options: Any) -> Path:
    """A narrow one-layer model of ``shape``, quick to make."""
    return maker.make_random_model(shape, folder, num_layers=1, narrow=True, **options)


# --- facts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", model_shapes.SHAPES)
def test_real_shape_has_the_published_number_of_parameters(name: str) -> None:
    config = model_shapes.make_config(model_shapes.SHAPES[name])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


def test_aliases_lead_to_shapes() -> None:
    assert set(model_shapes.ALIASES.values()) <= set(model_shapes.SHAPES)
    assert model_shapes.find_shape("llama") is model_shapes.SHAPES["tinyllama-1.1b"]


@pytest.mark.parametrize("name", model_shapes.SHAPES)
def test_narrow_preset_only_replaces_what_the_shape_states(name: str) -> None:
    """A misspelt key would be kept by Transformers without effect."""
    shape = model_shapes.SHAPES[name]
    assert set(shape.narrow) - {"ffn_hidden_size"} <= set(shape.config)
    config = model_shapes.make_config(shape, narrow=True)
    assert config.vocab_size == shape.config["vocab_size"]


@pytest.mark.parametrize("name", model_shapes.SHAPES)
def test_generation_config_agrees_with_the_config(name: str) -> None:
    shape = model_shapes.SHAPES[name]
    eos = shape.generation["eos_token_id"]
    assert shape.config["eos_token_id"] in (eos, eos[0] if isinstance(eos, list) else eos)
    assert shape.generation["bos_token_id"] == shape.config["bos_token_id"]


# --- the written folder ---------------------------------------------------------------------


@pytest.mark.some(6)
def test_loads_and_gives_finite_varied_logits(made: Any) -> None:
    """Greedy search leaves the prompt's last token, and depends on the prompt."""
    name, folder = made
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == model_shapes.SHAPES[name].config["model_type"]
    answers = set()
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        with torch.no_grad():
            logits = model(ids, attention_mask=mask).logits
        assert logits.shape == (*ids.shape, model.config.vocab_size)
        assert logits.isfinite().all()
        assert logits[0, -1].std() > 0.3
        output = model.generate(
            ids, attention_mask=mask, max_new_tokens=24, do_sample=False, eos_token_id=-1
        )
        answer = output[0, ids.shape[1] :].tolist()
        assert len(set(answer)) >= 4
        answers.add(tuple(answer))
    assert len(answers) == len(PROMPTS)


def test_generation_config_is_the_real_one(made: Any) -> None:
    name, folder = made
    stored = GenerationConfig.from_pretrained(folder)
    for key, value in model_shapes.SHAPES[name].generation.items():
        assert getattr(stored, key) == value, key


def test_tokenizer_has_the_model_s_special_ids(made: Any) -> None:
    name, folder = made
    config, tokenizer = AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    eos = config.eos_token_id
    assert tokenizer.eos_token_id == (eos[0] if isinstance(eos, list) else eos)
    assert tokenizer.bos_token_id == config.bos_token_id
    pads_with_eos = name == "qwen2-0.5b"  # its configuration names no PAD
    pad = tokenizer.eos_token_id if pads_with_eos else config.pad_token_id
    assert tokenizer.pad_token_id == pad
    starts = tokenizer("x = 1")["input_ids"][0] == config.bos_token_id
    assert starts == model_shapes.SHAPES[name].adds_bos


def test_tokenizer_round_trips(made: Any) -> None:
    """Every character survives, also those whose ids the special pieces took."""
    tokenizer = AutoTokenizer.from_pretrained(made[1])
    text = "".join(map(chr, range(32, 127))) + "\n\tnaïve 日本語 🙂 def f(self):\n    return 1\n"
    ids = tokenizer(text)["input_ids"]
    special = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert all(token < tokenizer.vocab_size + 3 or token in special for token in ids)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.pad_token_id is None or tokenizer.pad_token_id not in ids


# --- determinism and options ----------------------------------------------------------------


def test_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first = digest(make(tmp_path / "a", seed=3))
    torch.manual_seed(123)  # the caller's generator is of no influence
    assert digest(make(tmp_path / "b", seed=3)) == first
    assert digest(make(tmp_path / "c", seed=4)) != first


def test_caller_s_generator_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    make(tmp_path / "a")
    assert torch.equal(torch.rand(4), expected)


def test_dtypes_round_the_same_numbers(tmp_path: Path) -> None:
    fine = AutoModelForCausalLM.from_pretrained(make(tmp_path / "a", dtype="float32"))
    coarse = AutoModelForCausalLM.from_pretrained(make(tmp_path / "b", dtype=torch.bfloat16))
    assert coarse.dtype == torch.bfloat16
    for name, weight in fine.named_parameters():
        assert torch.equal(weight.to(torch.bfloat16), coarse.get_parameter(name)), name


def test_init_scale_widens_the_blocks_only(tmp_path: Path) -> None:
    one = AutoModelForCausalLM.from_pretrained(make(tmp_path / "a", dtype="float32"))
    two = AutoModelForCausalLM.from_pretrained(
        make(tmp_path / "b", dtype="float32", init_scale=2.0)
    )
    name = "model.decoder.layers.0.fc1.weight"
    assert torch.equal(two.get_parameter(name), 2 * one.get_parameter(name))
    name = "model.decoder.embed_tokens.weight"
    assert torch.equal(two.get_parameter(name), one.get_parameter(name))


def test_spread_is_one_over_the_root_of_the_inputs(tmp_path: Path) -> None:
    """GPT-2 stores its matrices transposed: the widening one has 256 inputs, not 1,024."""
    model = AutoModelForCausalLM.from_pretrained(make(tmp_path / "a", "gpt2", dtype="float32"))
    block = model.transformer.h[0].mlp
    assert block.c_fc.weight.std().item() == pytest.approx(256**-0.5, rel=0.02)
    assert block.c_proj.weight.std().item() == pytest.approx(1024**-0.5, rel=0.02)


def test_layers_are_kept_real_by_default() -> None:
    assert model_shapes.make_config(model_shapes.SHAPES["gpt2"]).n_layer == 12
    assert model_shapes.make_config(model_shapes.SHAPES["gpt2"], num_layers=3).n_layer == 3
    gemma = model_shapes.make_config(model_shapes.SHAPES["gemma3-1b"], num_layers=6)
    assert gemma.layer_types == ["sliding_attention"] * 5 + ["full_attention"]


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "opt-125"}, "unknown shape 'opt-125'; known are opt-125m"),
        ({"shape": "gpt2", "num_layers": 0}, "at least one layer"),
        ({"shape": "gpt2", "dtype": "int8"}, "'int8' is no floating-point dtype"),
        ({"shape": "gpt2", "dtype": "bf"}, "'bf' is no floating-point dtype"),
        ({"shape": "mistral-7b"}, "would take 13.5 GiB, more than 4"),
    ],
)
def test_wrong_requests_write_nothing(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        maker.make_random_model(directory=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gpt2"
    maker.main(["gpt2", str(out), "--layers", "1", "--narrow", "--dtype", "float16"])
    assert json.loads((out / "config.json").read_text())["n_layer"] == 1
    assert str(out) in capsys.readouterr().out


def test_command_line_explains_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        maker.main(["mixtral-8x7b", str(tmp_path / "out")])
    assert "fewer layers" in capsys.readouterr().err
