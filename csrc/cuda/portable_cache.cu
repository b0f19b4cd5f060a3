#include "portable_cache.cuh"
