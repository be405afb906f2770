#include "transport/keys/load_security.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <optional>
#include <utility>
#include <variant>

#include "transport/crypto/tls_security.h"
#include "transport/keys/key_file.h"

namespace longhaul::keys {
namespace {

constexpr const char* kDefaultJob = "default";

Status Invalid(std::string text) { return {StatusCode::kInvalidArgument, std::move(text)}; }

Status Check(const SecurityChoice& choice) {
  if (choice.insecure && !choice.key_file.empty()) return Invalid("a key and --insecure: say one of them");
  if (!choice.insecure && choice.key_file.empty()) {
    return Invalid(
        "no key: --key FILE, which `longhaul keygen --out FILE` makes for all of the job; or --insecure, which everyone on "
        "the way can read and forge");
  }
  if (choice.insecure && !choice.allow.empty()) return Invalid("--allow needs certificates, and --insecure has none");
  if (choice.insecure && !choice.cipher.empty()) return Invalid("--cipher and --insecure: say one of them");
  return {};
}

std::string Describe(const crypto::Credentials& credentials) {
  if (const auto* shared = std::get_if<crypto::PskKey>(&credentials)) return "shared key of job " + shared->job;
  const transport::PeerIdentity& own = std::get<crypto::CertificateKey>(credentials).identity;
  return "certificate " + own.role + "/" + own.name + " of job " + own.job;
}

const std::string& JobOf(const crypto::Credentials& credentials) {
  if (const auto* shared = std::get_if<crypto::PskKey>(&credentials)) return shared->job;
  return std::get<crypto::CertificateKey>(credentials).identity.job;
}

std::optional<crypto::AeadSuite> ParseSuite(std::string_view name) {
  using crypto::AeadSuite;
  for (const AeadSuite suite : {AeadSuite::kAes128Gcm, AeadSuite::kAes256Gcm, AeadSuite::kChaCha20Poly1305}) {
    const std::string_view official = crypto::AeadName(suite);
    if (std::ranges::equal(name, official, [](char a, char b) { return a == std::tolower(b); })) return suite;
  }
  return std::nullopt;
}

Result<crypto::TlsOptions> OptionsOf(const SecurityChoice& choice) {
  crypto::TlsOptions options;
  options.role = choice.role;
  options.job = choice.job;
  options.allowed_names = choice.allow;
  options.server_name = choice.server_name;
  options.wall_clock = [] {
    return static_cast<int64_t>(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()));
  };
  if (choice.cipher.empty()) return options;
  const std::optional<crypto::AeadSuite> suite = ParseSuite(choice.cipher);
  if (!suite) {
    return Invalid("--cipher is \"" + choice.cipher + "\", but must be aes-128-gcm, aes-256-gcm or chacha20-poly1305");
  }
  options.suites = {*suite};
  return options;
}

}  // namespace

Result<LoadedSecurity> LoadSecurity(const SecurityChoice& choice) {
  if (Status fine = Check(choice); !fine.ok()) return fine;
  LoadedSecurity loaded;
  if (choice.insecure) {
    loaded.job = choice.job.empty() ? kDefaultJob : choice.job;
    loaded.description = "none";
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
    return named(Invalid("--allow needs certificates: whoever has a shared key is anybody"));
  }
  Result<crypto::TlsOptions> options = OptionsOf(choice);
  if (!options.ok()) return options.status();
  loaded.job = choice.job.empty() ? JobOf(*credentials) : choice.job;
  loaded.description = Describe(*credentials);
  loaded.kind = std::holds_alternative<crypto::PskKey>(*credentials) ? "tls-psk" : "tls-certificates";
  auto security = crypto::TlsSecurity::Create(*std::move(credentials), *std::move(options));
  if (!security.ok()) return named(security.status());
  loaded.security = *std::move(security);
  return loaded;
}

}  // namespace longhaul::keys
