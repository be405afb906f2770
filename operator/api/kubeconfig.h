// Where an API server is, and how this program proves what it is: from a pod's service account, or from a
// kubeconfig file.
//
// What kubectl can do and this cannot is refused by name, with what to do instead: exec and auth-provider
// plug-ins, basic authentication, proxies, impersonation, servers without verification, another TLS server
// name.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "longhaul/status.h"
#include "longhaul/units.h"

namespace longhaul::kube::api {

struct ClusterAccess {
  std::string server;                          // "https://10.0.0.1:6443"
  std::string ca;                              // PEM; empty: the system's authorities
  std::string client_certificate, client_key;  // PEM; both or none
  std::string token;                           // or, read again each minute:
  std::string token_file;                      // empty: there is none
  std::string name_space;                      // where objects go that name none
};

// A kubeconfig as bytes, of which files are still to be read.
struct KubeconfigEntry {
  ClusterAccess access;
  std::string ca_file, certificate_file, key_file;
};

// kubectl's own limit is none; a kubeconfig with a hundred clusters is 500 KB.
inline constexpr size_t kMaxKubeconfigBytes = size_t{4} << 20;

// No file is read. context: empty means current-context. Errors: kInvalidArgument, with the remedy.
Result<KubeconfigEntry> ParseKubeconfig(std::string_view text, const std::string& context = "");
// Reads the file and those that it names, relative to its folder. Errors: kNotFound, kPermissionDenied,
// kInvalidArgument, naming the file.
Result<ClusterAccess> LoadKubeconfig(const std::string& path, const std::string& context = "");

// Of the service account folder that kubelet mounts, "/var/run/secrets/kubernetes.io/serviceaccount"; host
// and port: KUBERNETES_SERVICE_HOST and _PORT. Errors: kFailedPrecondition when this is not in a pod.
Result<ClusterAccess> InCluster(const std::string& folder, const std::string& host, const std::string& port);

// Every access ends here: an address that is one, TLS but for loopback, a pair of certificate and key.
Status CheckAccess(const ClusterAccess& access);

// Whole, at most `limit` bytes. `what` names it in errors.
Result<std::string> ReadSmallFile(const std::string& path, size_t limit, std::string_view what);

// A bearer token: fixed, or of a file that kubelet renews in place.
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

}  // namespace longhaul::kube::api
