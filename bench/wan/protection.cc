#include "bench/wan/protection.h"

#include <utility>

namespace longhaul::bench {

Result<Protection> Protection::Make(bool insecure) {
  Protection protection;
  if (insecure) return protection;
  auto key = keys::TemporaryKey::Make("default");
  if (!key.ok()) return key.status();
  protection.key_.emplace(*std::move(key));
  return protection;
}

std::vector<std::string> Protection::ServerFlags() const {
  if (key_) return {"--key", key_->path()};
  return {"--insecure", "--insecure-bind"};
}

std::vector<std::string> Protection::ClientFlags() const {
  if (key_) return {"--key", key_->path()};
  return {"--insecure"};
}

std::string ProtectedRunner(const std::string& name, bool insecure) {
  return insecure && name.starts_with("longhaul") && !name.ends_with("-insecure") ? name + "-insecure" : name;
}

const char* ProtectionName(bool insecure) { return insecure ? "insecure" : "encrypted"; }

}  // namespace longhaul::bench
