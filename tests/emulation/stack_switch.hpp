// Tells AddressSanitizer that execution switches to another stack; does nothing without it.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace espalier::emulation {

/// A stack, and the sanitizer's state of it while another runs.
struct Stack {
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* kept = nullptr;
};

/// Call before a switch: execution leaves `from`, permanently if `last`.
inline void Leave([[maybe_unused]] Stack& from, [[maybe_unused]] const Stack& to, [[maybe_unused]] bool last = false) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &from.kept, to.bottom, to.bytes);
#endif
}

/// Call after a switch: execution is on `here`, for the first time if it has no saved state, and came from `from`.
inline void Enter([[maybe_unused]] Stack& here, [[maybe_unused]] Stack& from) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(here.kept, &from.bottom, &from.bytes);
#endif
}

}  // namespace espalier::emulation
