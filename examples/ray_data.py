"""A file of prompts, answered by engines that Ray Data starts on the machines of a Ray cluster.

Each line of INPUT has an `id` and a `prompt`. The same command goes on where it was stopped.

    python examples/ray_data.py INPUT.jsonl OUTPUT_FOLDER [ENGINES] [MODEL]
"""

import sys

from ray.data import DataContext, read_json
from ray.data.checkpoint import CheckpointConfig
from ray.data.llm import build_processor, vLLMEngineProcessorConfig

if __name__ == "__main__":
    source, target, *others = sys.argv[1:]
    engines = int(others[0]) if others else 2
    model = others[1] if len(others) > 1 else "models/tiny-python-llama"
    DataContext.get_current().checkpoint_config = CheckpointConfig(
        id_column="id", checkpoint_path=f"{target}.checkpoint", delete_checkpoint_on_success=False
    )
    config = vLLMEngineProcessorConfig(
        model_source=model,
        engine_kwargs={
            "hf_compat": True,
            "dtype": "float32",
            "enforce_eager": True,  # starts sooner; leave it out for long runs
            "kv_cache_memory_bytes": 1 << 28,  # of each engine, since several share a machine
        },
        concurrency=(engines, engines),
        batch_size=16,  # what a killed engine has to answer again, times max_concurrent_batches
        # For CPUs; leave both out for a GPU each. Engines on one machine would bind the same cores.
        placement_group_config={"bundles": [{"CPU": 1}]},
        runtime_env={"env_vars": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}},
        chat_template_stage=False,
        tokenize_stage=False,
        detokenize_stage=False,
    )
    # What vLLM has not of HF's fields stands in `generation_config`.
    fields = {"max_new_tokens": 32, "no_repeat_ngram_size": 3, "do_sample": False}
    sampling_params = {"repetition_penalty": 1.2, "extra_args": {"generation_config": fields}}
    answers = build_processor(
        config,
        preprocess=lambda row: {**row, "sampling_params": sampling_params},
        postprocess=lambda row: {
            "id": row["id"],
            "text": row["generated_text"],
            "token_ids": row["generated_tokens"],
        },
    )(read_json(source))
    answers.write_parquet(target)
