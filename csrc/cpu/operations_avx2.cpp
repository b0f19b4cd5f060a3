// AVX2 and FMA.
#include "cpu/portable/attention/products_avx2.h"
#include "cpu/operations_table.h"

namespace vllm_fork {
namespace {

struct Avx2 : WidenedProducts<Avx2> {
  static constexpr int kRows = 1;
};

}  // namespace

constexpr PortableOperations portable_operations_avx2 = Table<Avx2>::operations();

}  // namespace vllm_fork
