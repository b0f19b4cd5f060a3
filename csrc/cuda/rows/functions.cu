#include "cuda/rows/functions.cuh"
