// A bearer token: fixed, or of a file that kubelet renews in place.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "longhaul/status.h"
#include "longhaul/units.h"

namespace longhaul::kubernetes {

class Token {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // file: empty when there is none; else it wins over `fixed`.
  Token(std::string fixed, std::string file, Duration max_age)
      : token_(std::move(fixed)), file_(std::move(file)), max_age_(max_age) {}

  // Empty: none. The file is read when what is known is older than max_age. One that cannot be read leaves
  // what is known; kUnavailable when nothing is.
  Result<std::string> Get(Time now);
  // The server refuses it: Get reads again.
  void Expire() { fresh_ = false; }
  bool IsRenewable() const { return !file_.empty(); }
  uint64_t reads() const { return reads_; }

 private:
  std::string token_;
  const std::string file_;
  const Duration max_age_;
  Time read_at_;
  bool fresh_ = false;
  uint64_t reads_ = 0;
};

}  // namespace longhaul::kubernetes
