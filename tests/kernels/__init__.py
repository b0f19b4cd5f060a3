"""The kernels, on this machine's CPU and as CUDA emulated on it."""
