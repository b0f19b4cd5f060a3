// AVX-512F; what it has of integer products is no better than AVX2's.
#include "cpu/portable/attention/products_avx2.h"
#include "cpu/operations_table.h"

namespace vllm_fork {
namespace {

struct Avx512 : WidenedProducts<Avx512> {
  static constexpr int kRows = 1;
};

}  // namespace

constexpr PortableOperations portable_operations_avx512 = Table<Avx512>::operations();

}  // namespace vllm_fork
