"""InternLM2 for Transformers, which has no class of it: a definition that travels with its model.

The public checkpoints bring theirs, in files of the same names. Loading either takes
``trust_remote_code=True``.
"""

from tools.internlm2.configuration_internlm2 import InternLM2Config
from tools.internlm2.modeling_internlm2 import InternLM2ForCausalLM

__all__ = ["InternLM2Config", "InternLM2ForCausalLM"]

# `save_pretrained` copies the two files beside the weights.
InternLM2Config.register_for_auto_class("AutoConfig")
InternLM2ForCausalLM.register_for_auto_class("AutoModelForCausalLM")
