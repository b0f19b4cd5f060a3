#include "cuda/rows/rotary.cuh"
