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
        "no key: --key FILE, which `longhaul keygen --out FILE` makes for all of the job; or --insecure, "
        "which everyone on "
        "the way can read and forge");
  }
  if (choice.insecure && !choice.allow.empty())
    return Invalid("--allow needs certificates, and --insecure has none");
  if (choice.insecure && !choice.cipher.empty()) return Invalid("--cipher and --insecure: say one of them");
  return {};
}

// For messages: what a terminal might take for a command is not repeated.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text.substr(0, 64)) quoted += c >= ' ' && c <= '~' ? c : '?';
  return quoted + (text.size() > 64 ? "...\"" : "\"");
}

// A list that lets nobody in by mistake, or everybody, is found out here and not when a worker is missing.
Result<std::vector<std::string>> AllowedNames(const std::vector<std::string>& given) {
  std::vector<std::string> names;
  for (std::string_view name : given) {
    const size_t begin = name.find_first_not_of(" \t");
    name = begin == std::string_view::npos ? std::string_view() : name.substr(begin);
    name = name.substr(0, name.find_last_not_of(" \t") + 1);
    if (name.empty())
      return Invalid("--allow: a name is empty; leave --allow out to let in every certificate of the job");
    if (!crypto::CheckKeyName("name", name).ok()) {
      return Invalid(
          "--allow: " + Quoted(name) +
          " is the name of no certificate: names are 1 to 64 of A-Z a-z 0-9 . _ - (no roles, no patterns)");
    }
    if (std::ranges::count(names, name) > 0) return Invalid("--allow: " + Quoted(name) + " is there twice");
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
  options.server_name = choice.server_name;
  options.wall_clock = [] {
    return static_cast<int64_t>(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()));
  };
  if (choice.cipher.empty()) return options;
  const std::optional<crypto::AeadSuite> suite = ParseSuite(choice.cipher);
  if (!suite) {
    return Invalid("--cipher is \"" + choice.cipher +
                   "\", but must be aes-128-gcm, aes-256-gcm or chacha20-poly1305");
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
    return named(Invalid("--allow needs certificates: whoever has a shared key is anybody"));
  }
  Result<crypto::TlsOptions> options = OptionsOf(choice);
  if (!options.ok()) return options.status();
  Result<std::vector<std::string>> allow = AllowedNames(choice.allow);
  if (!allow.ok()) return allow.status();
  loaded.allow = *std::move(allow);
  options->allowed_names = loaded.allow;
  loaded.job = choice.job.empty() ? JobOf(*credentials) : choice.job;
  loaded.description = Describe(*credentials);
  loaded.kind = std::holds_alternative<crypto::PskKey>(*credentials) ? "tls-psk" : "tls-certificates";
  auto security = crypto::TlsSecurity::Create(*std::move(credentials), *std::move(options));
  if (!security.ok()) return named(security.status());
  loaded.security = *std::move(security);
  return loaded;
}

}  // namespace longhaul::keys
