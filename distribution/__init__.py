"""Assembles the distribution: pinned upstream wheel + patches/ + vllm/ (overlay) + csrc/."""
