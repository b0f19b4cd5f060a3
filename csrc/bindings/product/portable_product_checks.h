// Checks of the arguments of the portable product's ops: see their schemas.
#pragma once

#include <cstdint>
#include <optional>

#include "bindings/argument_checks.h"
#include "portable/product_layout.h"

namespace vllm_fork {

// What a packed weight takes on the device at hand.
using PackedBytes = int64_t (*)(const ProductShape& shape);

void check_channel_statistics(const Tensor& weight);
void check_equalising_exponents(const Tensor& statistics);
void check_pack_weight(const Tensor& weight, const std::optional<Tensor>& exponents,
                       int64_t segments);
void check_repack_weight(const Tensor& packed, const Tensor& weight,
                         const std::optional<Tensor>& exponents, int64_t segments,
                         PackedBytes packed_bytes);
void check_unpack_weight(const Tensor& packed, const std::optional<Tensor>& exponents,
                         const ProductShape& shape, PackedBytes packed_bytes);
void check_portable_product(const Tensor& x, const Tensor& packed,
                            const std::optional<Tensor>& exponents,
                            const std::optional<Tensor>& bias, const ProductShape& shape,
                            ScalarType dtype, PackedBytes packed_bytes);

// Of ops that make the digits of `rows` rows, for a product with a weight of this shape.
void check_digit_rows(const char* op, const Tensor& x, int64_t rows, int64_t most_rows,
                      const std::optional<Tensor>& exponents, const ProductShape& shape);
void check_digits_product(const Tensor& packed, const std::optional<Tensor>& bias, int64_t rows,
                          int64_t most_rows, const ProductShape& shape, ScalarType dtype,
                          PackedBytes packed_bytes);
void check_digits(const Tensor& digits, const Tensor& packed, int64_t bytes);
void check_sum_partials(const Tensor& partials, const std::optional<Tensor>& bias,
                        ScalarType dtype);

// `output` is the first row of a weight that cannot be packed, or -1.
void check_packed_output(int64_t output);

}  // namespace vllm_fork
