"""The model's own layers as Hugging Face computes them: operations, their order, roundings."""
