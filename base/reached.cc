#include "base/reached.h"

extern "C" {
// The linker's names of a section's bounds.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern longhaul::Mark __start_longhaul_marks[] __attribute__((weak, visibility("hidden")));
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern longhaul::Mark __stop_longhaul_marks[] __attribute__((weak, visibility("hidden")));
}

namespace longhaul {

std::span<Mark> AllMarks() {
  if (__start_longhaul_marks == nullptr) return {};
  return {__start_longhaul_marks, __stop_longhaul_marks};
}

}  // namespace longhaul
