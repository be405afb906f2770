// What the operator keeps to itself: the key that the keys of jobs follow from.
#pragma once

#include <string>
#include <string_view>

#include "operator/api/rest_client.h"
#include "operator/controller/kinds.h"

namespace longhaul::kube {

inline constexpr size_t kOperatorKeyBytes = 32;

// An entry of a Secret's `data`, which is base64. Errors: kNotFound, kInvalidArgument.
Result<std::string> SecretEntry(const Json& secret, std::string_view entry);

// 64 hexadecimal digits: an HMAC of the job's uid. The same key at every call, so that a
// Secret that is lost, or the one of another site, is made again as it was.
std::string JobKey(std::string_view operator_key, std::string_view job_uid);

// Reads the operator's Secret, or makes it once: the API server takes one object of a name, so of two
// operators that make it the second reads what the first has made. One that is there is never changed: jobs
// that run have keys of it.
class OperatorKey {
 public:
  // The client outlives this.
  OperatorKey(api::RestClient* client, std::string name_space, std::string name)
      : client_(client), name_space_(std::move(name_space)), name_(std::move(name)) {}
  ~OperatorKey() { client_->Cancel(call_); }
  OperatorKey(const OperatorKey&) = delete;
  OperatorKey& operator=(const OperatorKey&) = delete;

  void Run(Instant now);
  bool Take(const api::RestEvent& event, Instant now);
  Instant NextDue() const { return known() || call_ != 0 ? Instant::Infinite() : next_; }

  bool known() const { return !key_.empty(); }
  // REQUIRES: known().
  std::string KeyOf(std::string_view job_uid) const { return JobKey(key_, job_uid); }
  const std::string& key() const { return key_; }  // kOperatorKeyBytes, "" while it is not known
  // Why it is not known; "" at first.
  const std::string& trouble() const { return trouble_; }

 private:
  void Adopt(const Json& secret);

  api::RestClient* client_;
  const std::string name_space_, name_;
  std::string key_, trouble_;
  api::CallId call_ = 0;
  bool makes_ = false;  // there is none: it is made
  Instant next_;
};

}  // namespace longhaul::kube
