// Products of a layer's matrices, whose digits are there: see measure.cuh.
#include "measure.cuh"
#include "cuda/product/product.cuh"

namespace vllm_fork {
namespace {

constexpr int64_t kSegments = 8;

// Cycles are those of a step of 32 channels.
template <class Tile>
void measure_product(int64_t outputs, int64_t inputs, int64_t rows) {
  const ProductShape shape{outputs, inputs, kSegments};
  const Multiprocessors gpu{132, 228 * 1024, TensorCores::kInt8Warpgroups, 0};
  const ProductPlan plan = plan_of<Tile>(shape, rows, gpu);
  const OnGpu<uint8_t> packed(static_cast<size_t>(WeightTiles(shape).bytes()));
  const OnGpu<uint8_t> workspace(static_cast<size_t>(plan.bytes()));
  const OnGpu<uint16_t> result(static_cast<size_t>(rows * outputs));
  fill_all(packed);
  fill_all(workspace);
  check(cudaMemset(plan.counters_in(workspace.data()), 0, static_cast<size_t>(4 * plan.counters)));
  char what[80];
  std::snprintf(what, sizeof what, "product %lld x %lld, %lld rows", static_cast<long long>(outputs),
                static_cast<long long>(inputs), static_cast<long long>(rows));
  const std::vector<const char*> phases{"digits", "products", "last products",
                                        "rounding", "segments", "results"};
  measure(what, Tile::kThreads == 384 ? phases : std::vector<const char*>(), [&] {
    return multiply<Tile>(shape, rows, packed.data(), workspace.data(),
                          {result.data(), Format::kBfloat16, nullptr, Format::kFloat32}, gpu,
                          nullptr);
  });
}

}  // namespace
}  // namespace vllm_fork

int main() {
  using namespace vllm_fork;
  for (const int64_t rows : {2048, 256}) {
    measure_product<WarpgroupTileOf128>(6144, 4096, rows);
    measure_product<WarpgroupTileOf128>(28672, 4096, rows);
    measure_product<WarpgroupTileOf128>(4096, 14336, rows);
  }
  measure_product<WarpgroupTileOf64>(6144, 4096, 64);
  measure_product<WarpgroupTileOf64>(28672, 4096, 64);
  measure_product<WarpgroupTileOf64>(4096, 14336, 64);
  measure_product<TileOf8<TensorCores::kInt8>>(6144, 4096, 8);
  measure_product<TileOf8<TensorCores::kInt8>>(28672, 4096, 8);
}
