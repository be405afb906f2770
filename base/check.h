// Our own bugs stop loudly, in release builds too. Never used on anything that came from a peer or a file.
#pragma once

#include <sstream>
#include <string>

namespace longhaul::internal {
// Prints "longhaul: bug: FILE:LINE: EXPRESSION DETAIL" and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* expression, const std::string& detail);

template <typename A, typename B>
std::string Describe(const A& a, const B& b) {
  std::ostringstream out;
  out << "(" << a << " against " << b << ")";
  return out.str();
}
}  // namespace longhaul::internal

#define LH_CHECK(condition) \
  ((condition) ? void(0) : ::longhaul::internal::CheckFailed(__FILE__, __LINE__, #condition, ""))

// Compares and prints both values: LH_CHECK_OP(bytes, <=, bound).
#define LH_CHECK_OP(a, op, b)                                                            \
  (((a)op(b)) ? void(0)                                                                  \
              : ::longhaul::internal::CheckFailed(__FILE__, __LINE__, #a " " #op " " #b, \
                                                  ::longhaul::internal::Describe(a, b)))
