"""TRL's GRPOTrainer with the log-probabilities of its engine, to the last bit.

The engine is in the trainer's process (vllm_mode="colocate") and gets the weights before each step.
The reward is the share of an answer that is Python. After each step this prints the mean reward,
and how far the log-probabilities of the sampled tokens were apart between trainer and engine, TRL's
metric sampling/sampling_logp_difference/max: 0.0. With --stock GRPOTrainer computes them by itself.

pip install -e ".[rl]"; python examples/grpo_trl.py [--stock] [--steps 10] [--model MODEL]
"""

import argparse
import ast
import os
import tempfile
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from vllm.deterministic import attach, token_log_probs

PROMPTS = ["def read_lines(path):\n", "for name in names:\n", "x = [1, 2]\n", "import os\nimport"]


class ExactGRPOTrainer(GRPOTrainer):
    """Asks the engine's kernels; GRPOTrainer multiplies with the weight of the head itself."""

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        size = batch_size or len(input_ids)
        sampling = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        parts = [
            token_log_probs(
                model, ids, attention_mask=mask, logits_to_keep=logits_to_keep, **sampling
            )
            for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True)
        ]
        values = torch.cat(parts)
        return values, -values.detach(), None  # the mean of -log p over samples is the entropy


class Report(TrainerCallback):
    """Prints a line for each step."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "reward" in logs:
            apart = logs["sampling/sampling_logp_difference/max"]
            print(f"step {state.global_step}: reward {logs['reward']:.3f}, apart at most {apart}")


def share_of_python(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """Return, for each answer, the share of its lines and its prompt's before the first mistake."""
    texts = [
        (prompt + answer).splitlines() for prompt, answer in zip(prompts, completions, strict=True)
    ]
    return [max(n for n in range(len(one) + 1) if is_python(one[:n])) / len(one) for one in texts]


def is_python(lines: list[str]) -> bool:
    try:
        ast.parse("\n".join(lines))
    except (SyntaxError, ValueError):
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="models/tiny-python-llama")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--stock", action="store_true")
    arguments = parser.parse_args()
    os.environ["VLLM_DETERMINISTIC"] = "1"  # TRL fixes the arguments of its engine
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.bfloat16)
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        max_steps=arguments.steps,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=32,
        learning_rate=1e-4,
        bf16=False,  # True is autocast; the model itself is in bfloat16
        use_cpu=not torch.cuda.is_available(),
        use_vllm=True,
        vllm_mode="colocate",
        vllm_max_model_length=512,
        vllm_gpu_memory_utilization=0.1,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = (GRPOTrainer if arguments.stock else ExactGRPOTrainer)(
        model=attach(model, training=True),
        reward_funcs=share_of_python,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=AutoTokenizer.from_pretrained(arguments.model),
        callbacks=[Report()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()


if __name__ == "__main__":
    main()
