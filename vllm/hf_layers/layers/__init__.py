"""The layers: linear, norms, rotary embeddings, activations, mixtures of experts."""
