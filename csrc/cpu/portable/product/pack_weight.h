// A weight as the portable product reads it, and what its channels' magnitudes are.
#pragma once

#include <cstdint>

#include "portable/product_arguments.h"
#include "portable/product_layout.h"

namespace vllm_fork {

// Writes the panels [first, last). `equalised` are the exponents of the channels, int8 [inputs];
// null if all are 0. Returns the first output with a number that is not finite or too great, or -1.
int64_t pack_panels(const ProductShape& shape, const WeightNumbers& weight, const int8_t* equalised,
                    int64_t first, int64_t last, uint8_t* packed);

// Writes the rows of the outputs [first, last): the weight that the digits stand for.
void unpack_outputs(const ProductShape& shape, const uint8_t* packed, const int8_t* equalised,
                    int64_t first, int64_t last, float* weight);

// Adds up, for the channels [first, last), the statistic of the specification's section 3.
void add_channel_statistics(int64_t outputs, int64_t inputs, const WeightNumbers& weight,
                            int64_t first, int64_t last, int64_t* statistics);

// The exponents that bring each channel's statistic to the median, int8 [inputs].
void equalise_channels(const int64_t* statistics, int64_t inputs, int8_t* exponents);

}  // namespace vllm_fork
