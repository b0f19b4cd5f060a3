"""An engine with default memory settings on a machine that reports 5 of 24 GiB available."""

from __future__ import annotations

from _report import arguments, report

from vllm import LLM, SamplingParams
from vllm.utils import cpu_resource_utils
from vllm.v1.worker import cpu_worker

GIB = 1 << 30


def little_memory(node_id: int = 0) -> cpu_resource_utils.MemoryNodeInfo:
    return cpu_resource_utils.MemoryNodeInfo(total_memory=24 * GIB, available_memory=5 * GIB)


if __name__ == "__main__":
    cpu_worker.get_memory_node_info = little_memory
    chosen = {"gpu_memory_utilization": 0.9} if arguments["chosen"] else {}
    try:
        llm = LLM(
            arguments["model"], dtype="float32", max_model_len=512, enforce_eager=True, **chosen
        )
    except ValueError as error:
        report(str(error))
    outputs = llm.generate("def f(x):", SamplingParams(temperature=0, max_tokens=4))
    report(len(outputs[0].outputs[0].token_ids))
