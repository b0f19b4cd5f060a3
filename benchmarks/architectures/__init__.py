"""How many answers and logits of each architecture are those of Transformers."""
