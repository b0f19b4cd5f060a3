#include "cpu/isa.h"

#if defined(VLLM_FORK_X86)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace vllm_fork {
namespace {

constexpr const char* kVariable = "VLLM_FORK_CPU_ISA";

bool always() { return true; }

#if defined(VLLM_FORK_X86)
// These ask the operating system too: a CPU whose wide registers are not saved at a context switch
// counts as one without them.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

// Linux saves the tiles of processes that have asked for it (Documentation/arch/x86/xstate.rst).
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
bool has_amx() {
  return has_avx512vnni() && __builtin_cpu_supports("amx-tile") &&
         __builtin_cpu_supports("amx-int8") && may_use_tiles();
}
#endif

// Best first: a CPU that has one has those behind it.
constexpr Isa kIsas[] = {
#if defined(VLLM_FORK_X86)
    {"amx", has_amx, penalize_row_avx512, draw_row_avx512, skip_numbers_avx512,
     row_products_avx512, &portable_operations_avx512vnni, product_kernel_amx},
    {"avx512vnni", has_avx512vnni, penalize_row_avx512, draw_row_avx512, skip_numbers_avx512,
     row_products_avx512, &portable_operations_avx512vnni, product_kernel_avx512vnni},
    {"avx512", has_avx512, penalize_row_avx512, draw_row_avx512, skip_numbers_avx512,
     row_products_avx512, &portable_operations_avx512, product_kernel_avx512},
    {"avx2", has_avx2, penalize_row_avx2, draw_row_avx2, skip_numbers_avx2, nullptr,
     &portable_operations_avx2, product_kernel_avx2},
#endif
    {"scalar", always, penalize_row_scalar, draw_row_scalar, skip_numbers_scalar, nullptr,
     &portable_operations_scalar, product_kernel_scalar},
};

std::string supported_names() {
  std::string names;
  for (const Isa& isa : kIsas) {
    if (isa.is_supported()) names += (names.empty() ? "" : ", ") + std::string(isa.name);
  }
  return names;
}

const Isa& best_isa() {
  for (const Isa& isa : kIsas) {
    if (isa.is_supported()) return isa;
  }
  throw std::logic_error("the scalar path is always supported");
}

const Isa& named_isa(const std::string& name) {
  for (const Isa& isa : kIsas) {
    if (name == isa.name && isa.is_supported()) return isa;
  }
  throw std::runtime_error(std::string(kVariable) + "=" + name +
                           " is not an instruction set that this CPU and this build have. "
                           "They have: " +
                           supported_names() + ".");
}

const Isa& choose_isa() {
  const char* name = std::getenv(kVariable);
  return name == nullptr || *name == '\0' ? best_isa() : named_isa(name);
}

}  // namespace

const Isa& chosen_isa() {
  static const Isa& isa = choose_isa();
  return isa;
}

RowChains chosen_row_chains() {
#if defined(VLLM_FORK_X86)
  const bool may_use_avx512 = chosen_isa().row_products != nullptr;
  if (may_use_avx512 && __builtin_cpu_supports("avx512bf16")) return row_chains_avx512bf16;
#endif
  return nullptr;
}

FewRowChains chosen_few_row_chains() {
#if defined(VLLM_FORK_X86)
  if (chosen_row_chains() != nullptr) return few_row_chains_avx512bf16;
#endif
  return nullptr;
}

TransposedChains chosen_transposed_chains() {
#if defined(VLLM_FORK_X86)
  if (chosen_row_chains() != nullptr) return transposed_chains_avx512bf16;
#endif
  return nullptr;
}

MultiplyInOrder chosen_ordered_products() {
#if defined(VLLM_FORK_X86)
  if (chosen_isa().row_products != nullptr) return ordered_products_avx512;
#endif
  return nullptr;
}

AttendFromToken chosen_token_attention() {
#if defined(VLLM_FORK_X86)
  if (chosen_isa().row_products != nullptr) return token_attention_avx512;
#endif
  return nullptr;
}

AttendFromFloatToken chosen_float_token_attention() {
#if defined(VLLM_FORK_X86)
  if (chosen_isa().row_products != nullptr) return float_token_attention_avx512;
#endif
  return nullptr;
}

AttendInPrompt chosen_prompt_attention() {
#if defined(VLLM_FORK_X86)
  if (chosen_isa().row_products != nullptr) return prompt_attention_avx512;
#endif
  return nullptr;
}

}  // namespace vllm_fork
