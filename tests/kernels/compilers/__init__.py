"""What compilers make of the kernels."""
