#include "operator/api/token.h"

#include <cstddef>

#include "operator/api/kubeconfig.h"

namespace longhaul::kubernetes {
namespace {

constexpr size_t kMaxTokenBytes = size_t{64} << 10;  // those of service accounts are 1 KB

}  // namespace

Result<std::string> Token::Get(Time now) {
  if (file_.empty() || (fresh_ && now - read_at_ < max_age_)) return token_;
  ++reads_;
  const Result<std::string> text = ReadSmallFile(file_, kMaxTokenBytes, "token");
  std::string line = text.ok() ? text->substr(0, text->find_first_of(" \r\n\t")) : std::string();
  if (!line.empty()) {
    token_ = std::move(line);
    fresh_ = true;
    read_at_ = now;
    return token_;
  }
  if (!token_.empty()) return token_;
  return text.ok() ? Status(StatusCode::kUnavailable, "token: " + file_ + " is empty") : text.status();
}

}  // namespace longhaul::kubernetes
