"""Why some answers of hf_compat differ from Hugging Face's, as far as it is known."""

from __future__ import annotations

UNEXPLAINED = "Not explained yet: `vllm parity` shows which operation is the first to differ."

_FLOAT32 = (
    "In float32 the layers are vLLM's own, which add in another order: all logits differ in their "
    'last bits, and a token where two are that close. `hf_compat="exact"` removes it.'
)
_DEEPSEEK = (
    "hf_compat computes multi-head latent attention and mixtures of experts with vLLM's kernels, "
    'which round elsewhere. `hf_compat="exact"` removes it.'
)


def cause_of(model: str, dtype: str, mode: str) -> str:
    """Return a sentence for a row of which not all is equal."""
    if mode == "exact":
        return UNEXPLAINED
    if model.endswith(("-w8a8", "-w8a16")):
        return (
            "Quantised products are vLLM's, with activations scaled by the largest / 127 where "
            "compressed-tensors in Transformers has the largest / 127.5. "
            '`hf_compat="exact"` removes it.'
        )
    if dtype == "float32":
        return _FLOAT32
    return _DEEPSEEK if model.startswith("deepseek") else UNEXPLAINED
