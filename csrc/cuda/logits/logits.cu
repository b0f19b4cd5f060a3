#include "cuda/logits/logits.cuh"
