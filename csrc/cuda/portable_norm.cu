#include "portable_norm.cuh"
