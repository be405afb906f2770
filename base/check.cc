#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace longhaul::internal {

void CheckFailed(const char* file, int line, const char* expression, const std::string& detail) {
  std::fprintf(stderr, "longhaul: bug: %s:%d: %s %s\n", file, line, expression, detail.c_str());
  std::abort();
}

}  // namespace longhaul::internal
