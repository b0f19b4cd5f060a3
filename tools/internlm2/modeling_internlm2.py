"""InternLM2: Llama with one matrix for q, k and v, in which each key-value head is beside its own
queries (InternLM2 Technical Report, arXiv:2403.17297, section 2.2), and names of its own.
"""

from typing import Any, ClassVar

import torch
from torch import nn
from transformers import Cache, GenerationMixin, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from .configuration_internlm2 import InternLM2Config


class InternLM2Attention(nn.Module):
    """Grouped-query attention with rotary embeddings."""

    def __init__(self, config: InternLM2Config, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.is_causal = True
        rows = (config.num_attention_heads + 2 * config.num_key_value_heads) * self.head_dim
        self.wqkv = nn.Linear(config.hidden_size, rows, bias=config.bias)
        self.wo = nn.Linear(config.hidden_size, config.hidden_size, bias=config.bias)

    def forward(
        self,
        hidden_states: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        cache: Cache | None,
    ) -> torch.Tensor:
        """Attend from [batch, length, hidden_size] to itself and the cache."""
        batch, length, _ = hidden_states.shape
        groups = self.num_key_value_groups
        heads = self.wqkv(hidden_states).view(batch, length, -1, groups + 2, self.head_dim)
        query = heads[..., :groups, :].reshape(batch, length, -1, self.head_dim).transpose(1, 2)
        key, value = (heads[..., groups + i, :].transpose(1, 2) for i in range(2))
        query, key = apply_rotary_pos_emb(query, key, *angles)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        attended, _ = attend(self, query, key, value, mask, scaling=self.scaling)
        return self.wo(attended.reshape(batch, length, -1).contiguous())


class InternLM2MLP(nn.Module):
    """Gated MLP."""

    def __init__(self, config: InternLM2Config) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w3 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, length, hidden_size] of the same."""
        return self.w2(self.act_fn(self.w1(x)) * self.w3(x))


class InternLM2DecoderLayer(nn.Module):
    """Attention and MLP, with a norm before each."""

    def __init__(self, config: InternLM2Config, layer_idx: int) -> None:
        super().__init__()
        self.attention = InternLM2Attention(config, layer_idx)
        self.feed_forward = InternLM2MLP(config)
        self.attention_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.ffn_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden_states: torch.Tensor, *args: Any) -> torch.Tensor:
        """Return [batch, length, hidden_size] of the same."""
        hidden_states = hidden_states + self.attention(self.attention_norm(hidden_states), *args)
        return hidden_states + self.feed_forward(self.ffn_norm(hidden_states))


class InternLM2PreTrainedModel(PreTrainedModel):
    """What Transformers knows of the architecture."""

    config_class = InternLM2Config
    base_model_prefix = "model"
    _no_split_modules: ClassVar[list[str]] = ["InternLM2DecoderLayer"]
    _supports_sdpa = True
    _supports_attention_backend = True


class InternLM2Model(InternLM2PreTrainedModel):
    """The decoder."""

    def __init__(self, config: InternLM2Config) -> None:
        super().__init__(config)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            InternLM2DecoderLayer(config, i) for i in range(config.num_hidden_layers)
        )
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """As ``PreTrainedModel.get_input_embeddings``."""
        return self.tok_embeddings

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cache: Cache | None,
    ) -> torch.Tensor:
        """Return [batch, length, hidden_size]."""
        hidden_states = self.tok_embeddings(input_ids)
        if position_ids is None:
            known = 0 if cache is None else cache.get_seq_length()
            new = torch.arange(input_ids.shape[1], device=input_ids.device)
            position_ids = (known + new)[None]
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=attention_mask,
            past_key_values=cache,
            position_ids=position_ids,
        )
        angles = self.rotary_emb(hidden_states, position_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states, angles, mask, cache)
        return self.norm(hidden_states)


class InternLM2ForCausalLM(InternLM2PreTrainedModel, GenerationMixin):
    """The decoder with its language modeling head."""

    def __init__(self, config: InternLM2Config) -> None:
        super().__init__(config)
        self.model = InternLM2Model(config)
        self.vocab_size = config.vocab_size
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """As ``PreTrainedModel.get_output_embeddings``."""
        return self.output

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits [batch, length or logits_to_keep, vocab_size], and the cache."""
        hidden_states = self.model(input_ids, attention_mask, position_ids, past_key_values)
        logits = self.output(hidden_states[:, -logits_to_keep:])
        return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)
