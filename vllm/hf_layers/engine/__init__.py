"""What HF's operations ask of an engine: dtype, threads, lengths, and models that they refuse."""
