// From the options 'key_file' and 'insecure' to the endpoint's security. The only place that decides it,
// so that servers, workers and tools refuse the same things in the same words; and the only place that opens
// key files, at the start and again at a reload.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/allow_list.h"
#include "longhaul/job.h"
#include "longhaul/status.h"
#include "transport/core/security/security.h"
#include "transport/crypto/certificate.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::keys {

struct SecurityChoice {
  std::string key_file = {};  // of `longhaul keygen`: a shared key or a certificate, by its content
  bool insecure = false;      // instead of a key
  std::string job = {};       // empty: the key's; without a key "default"
  crypto::Role role = crypto::Role::kWorker;
  Cipher cipher = Cipher::kAny;  // kAny: what suits, fast ones first
  // Server, shared keys only: a second key that is valid beside the first one; it may be the same.
  // Certificates need none: their file may hold several authorities.
  std::string next_key_file = {};
  // Server, certificates only: entries of base/allow_list.h. Empty: every certificate of the CA for this job.
  std::vector<std::string> allow = {};
  std::string server_name = {};  // server: crypto::TlsOptions::server_name, from ServerName() (key_file.h)
  // Worker or tool, certificates only: the name that the server's certificate must have. Empty: any.
  std::string expected_server = {};
};

struct LoadedSecurity {
  // The key's, then the next key's where there is one; none with `insecure`: the endpoint's integrity tag.
  std::vector<std::shared_ptr<transport::Security>> keys;
  std::string job;
  // For people: "certificate worker/site-b of job resnet", "shared key of job resnet", "insecure".
  std::string description;
  // For programs: "tls-psk", "tls-certificates" or "insecure".
  std::string kind;
  AllowList allow;
  std::vector<std::string> trusts;  // transport::PeerIdentity::trust of all peers that are accepted
  int64_t expires = 0;              // of the own certificate, seconds since 1970; 0: never

  // Of those that have only one key; null with `insecure`.
  transport::Security* security() const { return keys.empty() ? nullptr : keys.front().get(); }
};

// Errors, naming the option: kInvalidArgument (neither or both of key and insecure, an allow-list that is
// none, another job than the key's, a server's certificate at a worker, ...), those of ReadKeyFile, and those
// of the file's content with its name.
Result<LoadedSecurity> LoadSecurity(const SecurityChoice& choice);

// For datagrams without a handshake: the root of the job's shared key (transport/crypto/imported_psk.h), of
// kPskBytes; empty with `insecure`. Errors: as LoadSecurity; kInvalidArgument: the file holds a certificate.
Result<crypto::SecretBytes> LoadPskRoot(const SecurityChoice& choice);

}  // namespace longhaul::keys
