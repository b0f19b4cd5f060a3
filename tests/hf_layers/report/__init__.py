"""Which layers have Hugging Face's bits."""
