"""What hf_compat asks of an engine's configuration before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.exceptions import VLLMValidationError
from vllm.fork.flags.settled_warnings import leave_out
from vllm.fork.startup.transformers_release import warn_of_untested_release
from vllm.hf_compat.call.generation_config import load_generation_config, merge_generation_config
from vllm.hf_compat.call.support import check_request
from vllm.logger import init_logger

if TYPE_CHECKING:
    from vllm.config import ModelConfig, SpeculativeConfig, VllmConfig

logger = init_logger(__name__)


def use_hf_semantics(vllm_config: VllmConfig) -> None:
    """Check that hf_compat can be honoured, and make HF's defaults the engine's.

    Raises:
        ValueError: the configuration asks for something that hf_compat cannot answer like HF.
    """
    _check_features(vllm_config)
    warn_of_untested_release()
    if vllm_config.speculative_config is not None:
        vllm_config.scheduler_config.async_scheduling = False  # each position waits for the last
    scheduler = (
        "HFAsyncScheduler" if vllm_config.scheduler_config.async_scheduling else "HFScheduler"
    )
    vllm_config.scheduler_config.scheduler_cls = f"vllm.hf_compat.rows.scheduler.{scheduler}"
    _use_hf_defaults(vllm_config.model_config)
    logger.info("hf_compat: Hugging Face generate() semantics, on the V1 model runner.")


def _check_features(vllm_config: VllmConfig) -> None:
    model_config = vllm_config.model_config
    refused = {
        "models that do not generate text": model_config.runner_type != "generate",
        "encoder-decoder models": model_config.is_encoder_decoder,
        "drafts that are accepted unseen": _accepts_unseen(vllm_config.speculative_config),
        "drafts of layers without attention, whose states keep what is rejected": (
            vllm_config.speculative_config is not None
            and (model_config.is_hybrid or model_config.is_attention_free)
        ),
        "watermarking": vllm_config.watermark_config is not None,
        "another scheduler": vllm_config.scheduler_config.scheduler_cls is not None,
    }
    for feature, asked_for in refused.items():
        if asked_for:
            raise ValueError(f"hf_compat does not support {feature} yet: leave one of them out.")


def _accepts_unseen(speculative: SpeculativeConfig | None) -> bool:
    return speculative is not None and speculative.rejection_sample_method == "synthetic"


def _use_hf_defaults(model_config: ModelConfig) -> None:
    """Give requests that leave a field of ``SamplingParams`` open HF's default for this model."""
    leave_out("vllm.config.model", "Default vLLM sampling parameters have been overridden by")
    of_model = merge_generation_config(None, load_generation_config(model_config))
    try:
        check_request(of_model)
    except VLLMValidationError as error:
        raise ValueError(
            f"{error} It comes from the model's generation configuration, which "
            "--override-generation-config can change."
        ) from None
    model_config.override_generation_config |= {
        "temperature": of_model.temperature if of_model.do_sample else 0.0,
        "top_k": of_model.top_k,
        "top_p": of_model.top_p,
        "repetition_penalty": of_model.repetition_penalty,
    }
