#include "transport/keys/load_security.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

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
  if (choice.insecure && choice.cipher != Cipher::kAny)
    return Invalid("'cipher' and 'insecure': say one of them");
  return {};
}

// For messages: what a terminal might take for a command is not repeated.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text.substr(0, 64)) quoted += c >= ' ' && c <= '~' ? c : '?';
  return quoted + (text.size() > 64 ? "...\"" : "\"");
}

// A list that mistakenly admits no worker, or every one, is refused here and not when a worker is missing.
Result<std::vector<std::string>> AllowedNames(const std::vector<std::string>& given) {
  std::vector<std::string> names;
  for (std::string_view name : given) {
    const size_t begin = name.find_first_not_of(" \t");
    name = begin == std::string_view::npos ? std::string_view() : name.substr(begin);
    name = name.substr(0, name.find_last_not_of(" \t") + 1);
    if (name.empty())
      return Invalid("'allow': a name is empty; leave 'allow' out to let in every certificate of the job");
    if (!crypto::CheckKeyName("name", name).ok()) {
      return Invalid(
          "'allow': " + Quoted(name) +
          " is the name of no certificate: names are 1 to 64 of A-Z a-z 0-9 . _ - (no roles, no patterns)");
    }
    if (std::ranges::count(names, name) > 0) return Invalid("'allow': " + Quoted(name) + " is there twice");
    names.emplace_back(name);
  }
  return names;
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

crypto::TlsOptions OptionsOf(const SecurityChoice& choice) {
  crypto::TlsOptions options;
  options.role = choice.role;
  options.job = choice.job;
  options.server_name = choice.server_name;
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
  Result<crypto::SecretBytes> text = ReadKeyFile(choice.key_file);
  if (!text.ok()) return text.status();
  const auto named = [&](const Status& status) {
    return Status(status.code(), "key file " + choice.key_file + ": " + status.message());
  };
  Result<crypto::Credentials> credentials = crypto::ParseKeyFile(text->text());
  text->Wipe();
  if (!credentials.ok()) return named(credentials.status());
  if (!choice.allow.empty() && std::holds_alternative<crypto::PskKey>(*credentials)) {
    return named(Invalid("'allow' needs certificates: a shared key names no one"));
  }
  crypto::TlsOptions options = OptionsOf(choice);
  Result<std::vector<std::string>> allow = AllowedNames(choice.allow);
  if (!allow.ok()) return allow.status();
  loaded.allow = *std::move(allow);
  options.allowed_names = loaded.allow;
  loaded.job = choice.job.empty() ? JobOf(*credentials) : choice.job;
  loaded.description = Describe(*credentials);
  loaded.kind = std::holds_alternative<crypto::PskKey>(*credentials) ? "tls-psk" : "tls-certificates";
  auto security = crypto::TlsSecurity::Create(*std::move(credentials), std::move(options));
  if (!security.ok()) return named(security.status());
  loaded.security = *std::move(security);
  return loaded;
}

}  // namespace longhaul::keys
