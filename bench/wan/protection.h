// How longhaul's programs of a benchmark are protected: encrypted under a key that lives as long as the run,
// or not at all, which both sides must then name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "transport/keys/temporary_key.h"

namespace longhaul::bench {

class Protection {
 public:
  // Errors: kInternal, when there is no place for the key.
  static Result<Protection> Make(bool insecure);

  // Empty: without a key.
  std::string key_file() const { return key_ ? key_->path() : std::string(); }
  // Of longhaul-server, whose address is not a loopback one.
  std::vector<std::string> ServerFlags() const;
  // Of the programs that join it.
  std::vector<std::string> ClientFlags() const;

 private:
  std::optional<keys::TemporaryKey> key_;
};

// The runner with this name; "longhaul..." gets an "-insecure" where it is meant, so that tables say so.
std::string ProtectedRunner(const std::string& name, bool insecure);
// What a report says about it: "encrypted" or "insecure".
const char* ProtectionName(bool insecure);

}  // namespace longhaul::bench
