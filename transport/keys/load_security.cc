#include "transport/keys/load_security.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "transport/crypto/imported_psk.h"
#include "transport/crypto/tls_security.h"
#include "transport/keys/key_file.h"

namespace longhaul::keys {
namespace {

constexpr const char* kDefaultJob = "default";

Status Invalid(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }

Status Check(const SecurityChoice& choice) {
  if (NameOf(choice.cipher) == "unknown") return Invalid("'cipher' is unknown");
  if (choice.key_file.find('\0') != std::string::npos) return Invalid("'key_file' contains a zero byte");
  if (choice.insecure && !choice.key_file.empty())
    return Invalid("'key_file' and 'insecure': say one of them");
  if (!choice.insecure && choice.key_file.empty()) {
    return Invalid(
        "no key: give 'key_file' what `longhaul keygen --out FILE` makes for all of the job; or 'insecure', "
        "which everyone on the way can read and forge");
  }
  if (choice.insecure && !choice.allow.empty())
    return Invalid("'allow' needs certificates, and 'insecure' has none");
  if (choice.insecure && !choice.expected_server.empty())
    return Invalid("'server_name' needs certificates, and 'insecure' has none");
  if (choice.insecure && !choice.next_key_file.empty())
    return Invalid("'next_key_file' and 'insecure': say one of them");
  if (choice.insecure && choice.cipher != Cipher::kAny)
    return Invalid("'cipher' and 'insecure': say one of them");
  return {};
}

std::string Describe(const crypto::Credentials& credentials) {
  if (const auto* shared = std::get_if<crypto::PskKey>(&credentials))
    return "shared key of job " + shared->job;
  const transport::PeerIdentity& own = std::get<crypto::CertificateKey>(credentials).identity;
  return "certificate " + own.role + "/" + own.name + " of job " + own.job;
}

const std::string& JobOf(const crypto::Credentials& credentials) {
  if (const auto* shared = std::get_if<crypto::PskKey>(&credentials)) return shared->job;
  return std::get<crypto::CertificateKey>(credentials).identity.job;
}

std::vector<crypto::AeadSuite> SuitesOf(Cipher cipher) {
  switch (cipher) {
    case Cipher::kAes128Gcm:
      return {crypto::AeadSuite::kAes128Gcm};
    case Cipher::kAes256Gcm:
      return {crypto::AeadSuite::kAes256Gcm};
    case Cipher::kChaCha20Poly1305:
      return {crypto::AeadSuite::kChaCha20Poly1305};
    case Cipher::kAny:
      break;
  }
  return crypto::TlsOptions().suites;
}

Status Named(const std::string& key_file, const Status& status) {
  return {status.code(), "key file " + key_file + ": " + status.message()};
}

Result<crypto::Credentials> ReadCredentials(const std::string& path) {
  Result<crypto::SecretBytes> text = ReadKeyFile(path);
  if (!text.ok()) return text.status();
  Result<crypto::Credentials> credentials = crypto::ParseKeyFile(text->text());
  text->Wipe();
  if (!credentials.ok()) return Named(path, credentials.status());
  return credentials;
}

// What a key of this kind has no use for.
Status CheckKind(const SecurityChoice& choice, const crypto::Credentials& credentials) {
  if (std::holds_alternative<crypto::PskKey>(credentials)) {
    if (!choice.allow.empty()) return Invalid("'allow' needs certificates: a shared key names no one");
    if (!choice.expected_server.empty())
      return Invalid("'server_name' needs certificates: a shared key names no server");
  } else if (!choice.next_key_file.empty()) {
    return Invalid(
        "'next_key_file' is for shared keys: a certificate's file may hold several authorities, and a reload "
        "reads it again");
  }
  return {};
}

// One more key that is valid: its content into `loaded`.
Status Add(const SecurityChoice& choice, const std::string& key_file, const crypto::TlsOptions& options,
           LoadedSecurity* loaded) {
  Result<crypto::Credentials> credentials = ReadCredentials(key_file);
  if (!credentials.ok()) return credentials.status();
  if (Status kind = CheckKind(choice, *credentials); !kind.ok()) return Named(key_file, kind);
  std::string kind = std::holds_alternative<crypto::PskKey>(*credentials) ? "tls-psk" : "tls-certificates";
  if (loaded->keys.empty()) {
    loaded->job = choice.job.empty() ? JobOf(*credentials) : choice.job;
    loaded->description = Describe(*credentials);
    loaded->kind = std::move(kind);
    if (const auto* own = std::get_if<crypto::CertificateKey>(&*credentials))
      loaded->expires = own->identity.expires;
  } else if (JobOf(*credentials) != loaded->job) {
    return Named(key_file,
                 Invalid("the next key is of job " + JobOf(*credentials) + ", not of " + loaded->job));
  }
  const std::vector<std::string> trusts = crypto::TrustsOf(*credentials);
  loaded->trusts.insert(loaded->trusts.end(), trusts.begin(), trusts.end());
  auto security = crypto::TlsSecurity::Create(*std::move(credentials), options);
  if (!security.ok()) return Named(key_file, security.status());
  loaded->keys.push_back(*std::move(security));
  return {};
}

crypto::TlsOptions OptionsOf(const SecurityChoice& choice) {
  crypto::TlsOptions options;
  options.role = choice.role;
  options.job = choice.job;
  options.server_name = choice.server_name;
  options.expected_server = choice.expected_server;
  options.wall_clock = [] {
    return static_cast<int64_t>(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()));
  };
  options.suites = SuitesOf(choice.cipher);
  return options;
}

}  // namespace

Result<LoadedSecurity> LoadSecurity(const SecurityChoice& choice) {
  if (Status fine = Check(choice); !fine.ok()) return fine;
  LoadedSecurity loaded;
  if (choice.insecure) {
    loaded.job = choice.job.empty() ? kDefaultJob : choice.job;
    loaded.description = "insecure";
    loaded.kind = "insecure";
    return loaded;
  }
  Result<AllowList> allow = AllowList::Parse(choice.allow);
  if (!allow.ok()) return allow.status();
  loaded.allow = *std::move(allow);
  crypto::TlsOptions options = OptionsOf(choice);
  options.allow = loaded.allow;
  if (Status added = Add(choice, choice.key_file, options, &loaded); !added.ok()) return added;
  if (choice.next_key_file.empty()) return loaded;
  if (Status added = Add(choice, choice.next_key_file, options, &loaded); !added.ok()) return added;
  return loaded;
}

Result<crypto::SecretBytes> LoadPskRoot(const SecurityChoice& choice) {
  if (Status fine = Check(choice); !fine.ok()) return fine;
  if (choice.insecure) return crypto::SecretBytes();
  Result<crypto::Credentials> credentials = ReadCredentials(choice.key_file);
  if (!credentials.ok()) return credentials.status();
  const auto* const shared = std::get_if<crypto::PskKey>(&*credentials);
  if (shared == nullptr) {
    return Named(choice.key_file, Invalid("a shared key of the job is needed, and this is a certificate"));
  }
  return crypto::PskRoot(*shared);
}

}  // namespace longhaul::keys
