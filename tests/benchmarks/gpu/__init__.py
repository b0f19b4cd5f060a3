"""The benchmarks of a GPU machine."""
