"""The bits of stock Transformers models."""
