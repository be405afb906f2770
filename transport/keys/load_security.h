// From the options 'key_file' and 'insecure' to the endpoint's security. The only place that decides it,
// so that servers, workers and tools refuse the same things in the same words.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "longhaul/job.h"
#include "longhaul/status.h"
#include "transport/core/security/security.h"
#include "transport/crypto/certificate.h"

namespace longhaul::keys {

struct SecurityChoice {
  std::string key_file = {};  // of `longhaul keygen`: a shared key or a certificate, by its content
  bool insecure = false;      // instead of a key
  std::string job = {};       // empty: the key's; without a key "default"
  crypto::Role role = crypto::Role::kWorker;
  Cipher cipher = Cipher::kAny;  // kAny: what suits, fast ones first
  // Server, certificates only: names of those that may connect, workers and tools; blanks around them do not
  // count. Empty: every certificate of the CA for this job.
  std::vector<std::string> allow = {};
  std::string server_name = {};  // server: crypto::TlsOptions::server_name, from ServerName() (key_file.h)
};

struct LoadedSecurity {
  std::unique_ptr<transport::Security> security;  // null with `insecure`: the endpoint's integrity tag
  std::string job;
  // For people: "certificate worker/site-b of job resnet", "shared key of job resnet", "insecure".
  std::string description;
  // For programs: "tls-psk", "tls-certificates" or "insecure".
  std::string kind;
  std::vector<std::string> allow;  // as they are compared: without blanks
};

// Errors, naming the option: kInvalidArgument (neither or both of key and insecure, a name
// of the allow-list that no certificate can have or that is there twice, another job than the key's, a
// server's certificate at a worker, ...), those of ReadKeyFile, and those of the file's content with its
// name.
Result<LoadedSecurity> LoadSecurity(const SecurityChoice& choice);

}  // namespace longhaul::keys
