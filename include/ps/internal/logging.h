// CHECK and LOG as programs of ps-lite write them. Where the program's compiler finds dmlc/logging.h, that is
// used; otherwise this: a check that fails throws ps::Error with both values, a log line goes to standard
// error.
#pragma once

#include <stdexcept>
#include <string>

namespace ps {

// What went wrong, with names: a node that died, a wrong setting, a check that does not hold.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ps

#if __has_include(<dmlc/logging.h>)
#include <dmlc/logging.h>
#else

#include <iostream>
#include <memory>
#include <sstream>

namespace ps::internal {

struct LogLine {
  LogLine(const char* severity, const char* file, int line) {
    text << severity << ' ' << file << ':' << line << ": ";
  }
  ~LogLine() { std::cerr << text.str() + "\n"; }
  std::ostringstream text;
};

// Throws where the statement ends.
struct FatalLine {
  FatalLine(const char* file, int line) { text << file << ':' << line << ": "; }
  ~FatalLine() noexcept(false) { throw Error(text.str()); }
  std::ostringstream text;
};

using Complaint = std::unique_ptr<std::string>;  // null: the check holds

template <typename A, typename B>
Complaint Compared(bool holds, const char* what, const A& a, const B& b) {
  if (holds) return nullptr;
  std::ostringstream text;
  text << "check failed: " << what << " (" << a << " and " << b << ") ";
  return std::make_unique<std::string>(text.str());
}

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#endif
#define PS_INTERNAL_COMPARISON(Name, op)                            \
  template <typename A, typename B>                                 \
  Complaint Check##Name(const A& a, const B& b, const char* what) { \
    return Compared(a op b, what, a, b);                            \
  }
PS_INTERNAL_COMPARISON(Eq, ==)
PS_INTERNAL_COMPARISON(Ne, !=)
PS_INTERNAL_COMPARISON(Lt, <)
PS_INTERNAL_COMPARISON(Le, <=)
PS_INTERNAL_COMPARISON(Gt, >)
PS_INTERNAL_COMPARISON(Ge, >=)
#undef PS_INTERNAL_COMPARISON
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

template <typename T>
T* NotNull(T* pointer, const char* what, const char* file, int line) {
  if (pointer == nullptr) FatalLine(file, line).text << "check failed: " << what << " is null";
  return pointer;
}

}  // namespace ps::internal

#ifndef CHECK
#define PS_INTERNAL_FATAL ::ps::internal::FatalLine(__FILE__, __LINE__).text
#define PS_INTERNAL_CHECK(Name, a, op, b)                          \
  while (const ::ps::internal::Complaint ps_complaint =            \
             ::ps::internal::Check##Name(a, b, #a " " #op " " #b)) \
  PS_INTERNAL_FATAL << *ps_complaint
#define CHECK(condition) \
  while (!(condition)) PS_INTERNAL_FATAL << "check failed: " #condition " "
#define CHECK_EQ(a, b) PS_INTERNAL_CHECK(Eq, a, ==, b)
#define CHECK_NE(a, b) PS_INTERNAL_CHECK(Ne, a, !=, b)
#define CHECK_LT(a, b) PS_INTERNAL_CHECK(Lt, a, <, b)
#define CHECK_LE(a, b) PS_INTERNAL_CHECK(Le, a, <=, b)
#define CHECK_GT(a, b) PS_INTERNAL_CHECK(Gt, a, >, b)
#define CHECK_GE(a, b) PS_INTERNAL_CHECK(Ge, a, >=, b)
#define CHECK_NOTNULL(pointer) ::ps::internal::NotNull(pointer, #pointer, __FILE__, __LINE__)
#endif

#ifndef LOG
#define PS_INTERNAL_LOG(severity) PS_INTERNAL_LOG_##severity
#define PS_INTERNAL_LOG_INFO ::ps::internal::LogLine("INFO", __FILE__, __LINE__).text
#define PS_INTERNAL_LOG_WARNING ::ps::internal::LogLine("WARNING", __FILE__, __LINE__).text
#define PS_INTERNAL_LOG_ERROR ::ps::internal::LogLine("ERROR", __FILE__, __LINE__).text
#define PS_INTERNAL_LOG_FATAL ::ps::internal::FatalLine(__FILE__, __LINE__).text
#define LOG(severity) PS_INTERNAL_LOG(severity)
#define LOG_IF(severity, condition) \
  if (condition) LOG(severity)
#endif

#endif

#ifndef LL
#define LL LOG(ERROR)
#endif
