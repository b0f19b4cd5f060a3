"""A folder of prompts, answered by servers that datatrove starts on the machines of a Ray cluster.

INPUT has one file at least for each server, with a `prompt` in each line. The same command goes on
where it was stopped, or where a server ended; its status is 1 until all is answered.

    python examples/datatrove_pipeline.py INPUT_FOLDER OUTPUT_FOLDER [SERVERS] [MODEL]
"""

import sys

import ray
from datatrove.data import Document
from datatrove.executor import RayPipelineExecutor
from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
from datatrove.pipeline.inference.types import GenerateFunction, InferenceResult
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter


async def answer(document: Document, generate: GenerateFunction) -> InferenceResult:
    """Ask the server; the rest of the body is in `default_generation_params`."""
    return await generate({"prompt": document.text})


if __name__ == "__main__":
    source, target, *others = sys.argv[1:]
    servers = int(others[0]) if others else 2
    config = InferenceConfig(
        server_type="vllm",
        model_name_or_path=others[1] if len(others) > 1 else "models/tiny-python-llama",
        model_max_context=2048,
        model_kwargs={
            "hf-compat": True,
            "dtype": "float32",
            "enforce-eager": True,  # starts sooner; leave it out for long runs
            "kv-cache-memory-bytes": 1 << 28,  # of each server, since several share a machine
        },
        use_chat=False,
        max_concurrent_generations=64,
        default_generation_params={
            "max_new_tokens": 32,
            "repetition_penalty": 1.2,
            "no_repeat_ngram_size": 3,
        },
        server_ready_delay_sec=1.0,
    )
    runner = InferenceRunner(
        answer,
        config,
        JsonlWriter(target, "${rank}_${chunk_index}.jsonl", compression=None),
        checkpoints_local_dir=f"{target}.checkpoint",
        records_per_chunk=32,
    )
    ray.init()
    executor = RayPipelineExecutor(
        [JsonlReader(source, text_key="prompt"), runner],
        tasks=servers,
        mem_per_cpu_gb=1,
        # On CPUs servers on one machine would bind the same cores.
        ray_remote_kwargs={"runtime_env": {"env_vars": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}}},
        logging_dir=f"{target}.logs",
    )
    executor.run()
    sys.exit(bool(executor.get_incomplete_ranks()))
