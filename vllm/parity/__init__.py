"""How far a model's answers in vLLM are from those of Hugging Face, and why (``vllm parity``).

* :mod:`.setting` - what is compared: model, dtype, prompts, lengths.
* :mod:`.sides` - the answers of Transformers and of an engine.
* :mod:`.differences` - where two answers part.
* :mod:`.drift` - how far hidden states are apart, layer by layer.
* :mod:`.causes` - what makes the difference, and the flag that removes it.
* :mod:`.report` - all of it, as JSON.
* :mod:`.recording` - answers of one machine, on file; :mod:`.machine` - what it is.
* :mod:`.recordings` - those of two machines compared.
* :mod:`.terminal`, :mod:`.html` - for reading; :mod:`.plots` - of the page.
* :mod:`.cli` - the command.
"""

from vllm.parity.recording import record
from vllm.parity.recordings import compare_recordings
from vllm.parity.report import compare_with_hf
from vllm.parity.setting import Setting

__all__ = ["Setting", "compare_recordings", "compare_with_hf", "record"]
