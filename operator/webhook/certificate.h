// The webhooks' certificate and key, as a Secret of the type kubernetes.io/tls is mounted: tls.crt and
// tls.key in one folder, and `path`, where there is one: what the API server knows and others do not. They
// are read again when the files are others.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "longhaul/status.h"

namespace asio::ssl {
class context;
}

namespace longhaul::kube::webhook {

class Certificate {
 public:
  using Context = std::shared_ptr<asio::ssl::context>;

  explicit Certificate(std::string folder) : folder_(std::move(folder)) {}

  // Reads the files where they are not those that were read last. What is no pair (kubelet replaces both at
  // once, other hands one after the other) leaves the one that is known, and is read again next time.
  // Errors: kNotFound (the file is not there), kPermissionDenied, kInvalidArgument, naming the file.
  Status Refresh();
  // Null until a Refresh was Ok. What has it keeps it.
  const Context& context() const { return context_; }
  const std::string& path() const { return path_; }  // "" without one
  uint64_t loads() const { return loads_; }

 private:
  // Device, inode, size and time of change of each file.
  using Stamp = std::array<int64_t, 15>;

  Status Stat(Stamp* stamp) const;

  const std::string folder_;
  Stamp read_{};
  Context context_;
  std::string path_;
  uint64_t loads_ = 0;
};

}  // namespace longhaul::kube::webhook
