#include "portable_rotary.cuh"
