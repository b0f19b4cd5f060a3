// PyTorch without CUDA has nothing that chooses the current GPU; the emulated one need not be
// chosen. This is no part of the stable ABI.
#undef TORCH_TARGET_VERSION
#include <c10/core/impl/DeviceGuardImplInterface.h>

C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>)
