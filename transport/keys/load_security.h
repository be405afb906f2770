// From what a user says (--key FILE, --insecure) to the endpoint's security. The only place that decides it,
// so that servers, workers and tools refuse the same things in the same words.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "longhaul/status.h"
#include "transport/core/security.h"
#include "transport/crypto/identity_name.h"

namespace longhaul::keys {

struct SecurityChoice {
  std::string key_file = {};  // of `longhaul keygen`: a shared key or a certificate; its content says which
  bool insecure = false;      // instead of a key
  std::string job = {};       // empty: the key's; without a key "default"
  crypto::Role role = crypto::Role::kWorker;
  std::string cipher =
      {};  // "aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"; empty: what suits, fast ones first
  // Server, certificates only: names of those that may connect, workers and tools; blanks around them do not
  // count. Empty: every certificate of the CA for this job.
  std::vector<std::string> allow = {};
  std::string server_name = {};  // server: crypto::TlsOptions::server_name, from ServerName() (server_name.h)
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

// Errors, naming the option: kInvalidArgument (neither or both of key and insecure, an unknown cipher, a name
// of the allow-list that no certificate can have or that is there twice, another job than the key's, a
// server's certificate at a worker, ...), those of ReadKeyFile, and those of the file's content with its
// name.
Result<LoadedSecurity> LoadSecurity(const SecurityChoice& choice);

}  // namespace longhaul::keys
