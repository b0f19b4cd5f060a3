#include "portable_functions.cuh"
