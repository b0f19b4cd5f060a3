"""What LoRA's CPU operators add to a row with an adapter and to one without."""

from __future__ import annotations

import torch
from _report import report

from vllm.lora.ops.torch_ops import bgmv_expand, bgmv_expand_slice

if __name__ == "__main__":
    inputs, indices = torch.ones(2, 1), torch.tensor([0, -1])
    only_adapter = torch.ones(1, 3, 1)  # [slots, width, rank]
    whole, part = torch.zeros(2, 3), torch.zeros(2, 5)
    bgmv_expand(inputs, only_adapter, whole, indices)
    bgmv_expand_slice(inputs, only_adapter, part, indices, 2, 3)
    report([whole.sum(dim=1).tolist(), part.sum(dim=1).tolist()])
