"""Layers of Transformers that keep states between tokens, with portable bits; see
``docs/numerics/states.md``.
"""

from .adopt import adopt_states, check_states, is_mixer
from .arguments import check_arguments
from .mixers import MixerForm

__all__ = ["MixerForm", "adopt_states", "check_arguments", "check_states", "is_mixer"]
