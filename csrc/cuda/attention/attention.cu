#include "cuda/attention/attention.cuh"
