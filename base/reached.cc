#include "base/reached.h"

extern "C" {
extern longhaul::Mark __start_longhaul_marks[] __attribute__((weak, visibility("hidden")));
extern longhaul::Mark __stop_longhaul_marks[] __attribute__((weak, visibility("hidden")));
}

namespace longhaul {

std::span<Mark> AllMarks() {
  if (__start_longhaul_marks == nullptr) return {};
  return {__start_longhaul_marks, __stop_longhaul_marks};
}

}  // namespace longhaul
