"""``vllm.entrypoints.llm`` and ``offline``: `generate()` calls, and the table of layers."""

from vllm.fork.requests_left import leaving_nothing_behind
from vllm.hf_compat.call import params_of_call
from vllm.hf_compat.frontend import accept_params
from vllm.parity_report.report import parity_report

__all__ = ["accept_params", "leaving_nothing_behind", "params_of_call", "parity_report"]
