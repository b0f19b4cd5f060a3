#include "portable_attention.cuh"
