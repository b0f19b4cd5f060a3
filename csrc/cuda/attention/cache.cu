#include "cuda/attention/cache.cuh"
