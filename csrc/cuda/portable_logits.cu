#include "portable_logits.cuh"
