#include "transport/crypto/tls_settings.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "transport/crypto/replayed_chance.h"

namespace longhaul::crypto {
namespace {

constexpr long kMaxCertificateListBytes = 32 << 10;

struct SuiteName {
  AeadSuite suite;
  uint16_t tls;
  const char* name;
};
constexpr SuiteName kSuites[] = {
    {AeadSuite::kAes128Gcm, 0x1301, "TLS_AES_128_GCM_SHA256"},
    {AeadSuite::kAes256Gcm, 0x1302, "TLS_AES_256_GCM_SHA384"},
    {AeadSuite::kChaCha20Poly1305, 0x1303, "TLS_CHACHA20_POLY1305_SHA256"},
};

Status Invalid(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }
Status Denied(std::string message) { return Status(StatusCode::kPermissionDenied, std::move(message)); }

// Fills in the job; an error when key and options contradict each other.
Status CheckFit(const Credentials& credentials, TlsOptions* options) {
  const PskKey* psk = std::get_if<PskKey>(&credentials);
  const CertificateKey* certificate = std::get_if<CertificateKey>(&credentials);
  if (psk == nullptr && certificate == nullptr) return Invalid("no key");
  const std::string& job = psk != nullptr ? psk->job : certificate->identity.job;
  if (options->job.empty()) options->job = job;
  if (options->job != job) return Denied("the key is of job " + job + ", not of " + options->job);
  if (options->suites.empty()) return Invalid("no cipher suite");
  if (psk != nullptr) {
    return psk->psk.size() == kPskBytes ? Status() : Invalid("a pre-shared key has 32 bytes");
  }
  if (!options->wall_clock) return Invalid("certificates need a wall clock");
  if (certificate->identity.role != RoleName(options->role)) {
    return Denied("the certificate is for a " + certificate->identity.role + ", not for a " +
                  std::string(RoleName(options->role)));
  }
  return {};
}

std::string SuiteList(const std::vector<AeadSuite>& suites, bool one_hash) {
  std::string list;
  for (AeadSuite suite : suites) {
    if (one_hash && AeadHash(suite) != AeadHash(suites.front())) continue;
    if (!list.empty()) list += ":";
    list +=
        std::find_if(std::begin(kSuites), std::end(kSuites), [&](auto& s) { return s.suite == suite; })->name;
  }
  return list;
}

// Everything that would make a handshake longer, resumable or weaker is off.
bool Restrict(SSL_CTX* context, const std::string& suites) {
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX |
                                     SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
  SSL_CTX_set_mode(context, SSL_MODE_NO_AUTO_CHAIN);  // the peer has the CA's certificate
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_security_level(context, 2);  // 112 bits: no RSA below 2048, no SHA-1
  SSL_CTX_set_max_cert_list(context, kMaxCertificateListBytes);
  return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_num_tickets(context, 0) == 1 && SSL_CTX_set_max_early_data(context, 0) == 1 &&
         SSL_CTX_set_ciphersuites(context, suites.c_str()) == 1 &&
         SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1;
}

bool UseCertificate(SSL_CTX* context, const CertificateKey& key, bool is_client) {
  bool ok = SSL_CTX_use_certificate(context, key.chain.front().get()) == 1 &&
            SSL_CTX_use_PrivateKey(context, (is_client ? key.client_key : key.private_key).get()) == 1;
  for (size_t i = 1; i < key.chain.size(); ++i)
    ok = ok && SSL_CTX_add1_chain_cert(context, key.chain[i].get()) == 1;
  // Only the file's own authorities, never the system's.
  for (const Certificate& authority : key.authorities) {
    ok = ok && X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) == 1;
  }
  return ok;
}

OpenSslPtr<ssl_ctx_st> MakeContext(const TlsSettings& settings, bool is_client) {
  const bool replays = settings.Replays(is_client);
  if (replays && replayed_chance::Library() == nullptr) return nullptr;
  if (replays) replayed_chance::Refresh();
  OpenSslPtr<ssl_ctx_st> context(SSL_CTX_new_ex(replays ? replayed_chance::Library() : nullptr, nullptr,
                                                is_client ? TLS_client_method() : TLS_server_method()));
  const bool one_hash = is_client && settings.psk() != nullptr;
  bool ok = context != nullptr && Restrict(context.get(), SuiteList(settings.options.suites, one_hash));
  if (const CertificateKey* key = settings.certificate())
    ok = ok && UseCertificate(context.get(), *key, is_client);
  return ok ? std::move(context) : nullptr;
}

// Of the key itself nothing is left.
void ReplacePskByItsImports(TlsSettings* settings) {
  PskKey* key = std::get_if<PskKey>(&settings->credentials);
  if (key == nullptr) return;
  settings->imported = {ImportPsk(*key, Hash::kSha256), ImportPsk(*key, Hash::kSha384)};
  settings->root = PskRoot(*key);
  key->psk.Wipe();
}

}  // namespace

Result<std::shared_ptr<const TlsSettings>> MakeTlsSettings(Credentials credentials, TlsOptions options) {
  if (Status fit = CheckFit(credentials, &options); !fit.ok()) return fit;
  auto settings = std::make_shared<TlsSettings>();
  settings->credentials = std::move(credentials);
  settings->trusts = TrustsOf(settings->credentials);
  settings->options = std::move(options);
  ReplacePskByItsImports(settings.get());
  ERR_clear_error();
  settings->client = MakeContext(*settings, true);
  settings->server = MakeContext(*settings, false);
  if (settings->client == nullptr || settings->server == nullptr)
    return Invalid("TLS: " + TakeOpenSslError());
  return std::shared_ptr<const TlsSettings>(std::move(settings));
}

std::optional<AeadSuite> SuiteOfTls(uint16_t cipher) {
  for (const SuiteName& s : kSuites) {
    if (s.tls == cipher) return s.suite;
  }
  return std::nullopt;
}

uint16_t TlsOfSuite(AeadSuite suite) {
  for (const SuiteName& s : kSuites) {
    if (s.suite == suite) return s.tls;
  }
  return 0;
}

}  // namespace longhaul::crypto
