#include "cuda/rows/norm.cuh"
