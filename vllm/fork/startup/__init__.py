"""What an engine needs before it starts: packages, memory, a compiler, a backend."""
