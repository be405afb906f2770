#include "transport/crypto/tls_session.h"

#include <openssl/err.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "transport/crypto/aead_protection.h"
#include "transport/crypto/key_derivation.h"
#include "transport/crypto/replayed_chance.h"

namespace longhaul::crypto {

using transport::PeerIdentity;

namespace {

constexpr std::string_view kExporterLabel = "EXPORTER-longhaul v1";
// An alert takes 24 bytes.
constexpr size_t kMaxBytesAfterHandshake = 1024;

Status Denied(std::string message) { return Status(StatusCode::kPermissionDenied, std::move(message)); }

bool IsUnknownIssuer(int error) {
  return error == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY ||
         error == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN ||
         error == X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE || error == X509_V_ERR_CERT_SIGNATURE_FAILURE;
}

// In a user's words, where OpenSSL's are not.
std::string CertificateProblem(int error) {
  if (IsUnknownIssuer(error)) return "was not issued by our CA";
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "has expired";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "is not valid yet";
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
      return "is self-signed, not issued by our CA";
    case X509_V_ERR_INVALID_PURPOSE:
      return "is not for this role";
    default:
      return std::string("is refused: ") + X509_verify_cert_error_string(error);
  }
}

OpenSslPtr<ssl_session_st> MakePskSession(const SSL_CIPHER* cipher, const ImportedPsk& psk) {
  OpenSslPtr<ssl_session_st> session(SSL_SESSION_new());
  const bool ok = session != nullptr && cipher != nullptr &&
                  SSL_SESSION_set1_master_key(session.get(), psk.key.span().data(), psk.key.size()) == 1 &&
                  SSL_SESSION_set_cipher(session.get(), cipher) == 1 &&
                  SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
  return ok ? std::move(session) : nullptr;
}

const SSL_CIPHER* CipherOf(SSL* ssl, AeadSuite suite) {
  const uint16_t number = TlsOfSuite(suite);
  const std::array<uint8_t, 2> id = {static_cast<uint8_t>(number >> 8), static_cast<uint8_t>(number)};
  return SSL_CIPHER_find(ssl, id.data());
}

const ImportedPsk& Imported(const TlsSettings& settings, AeadSuite suite) {
  return settings.imported[AeadHash(suite) == Hash::kSha256 ? 0 : 1];
}

// The job in an ImportedIdentity; "" when it is none.
std::string_view JobOf(std::string_view identity) {
  if (identity.size() < 2) return {};
  const size_t size =
      static_cast<size_t>(static_cast<uint8_t>(identity[0])) << 8 | static_cast<uint8_t>(identity[1]);
  return size <= identity.size() - 2 ? identity.substr(2, size) : std::string_view();
}

}  // namespace

// OpenSSL calls plain functions, with the session as the SSL object's application data.
struct TlsCallbacks {
  static TlsSession& Of(const SSL* ssl) { return *static_cast<TlsSession*>(SSL_get_app_data(ssl)); }

  // Client: the key to offer, imported for the hash of the first suite.
  static int OfferPsk(SSL* ssl, const EVP_MD* hash, const unsigned char** id, size_t* id_size,
                      SSL_SESSION** session) {
    const TlsSettings& settings = *Of(ssl).settings_;
    const AeadSuite suite = settings.options.suites.front();
    const ImportedPsk& psk = Imported(settings, suite);
    OpenSslPtr<ssl_session_st> made = MakePskSession(CipherOf(ssl, suite), psk);
    if (made == nullptr) return 0;
    // After a HelloRetryRequest the server has chosen; ours always has its hash, since we offered no other.
    const EVP_MD* own = SSL_CIPHER_get_handshake_digest(SSL_SESSION_get0_cipher(made.get()));
    if (hash != nullptr && EVP_MD_get_type(own) != EVP_MD_get_type(hash)) return 0;
    *id = psk.identity.data();
    *id_size = psk.identity.size();
    *session = made.release();
    return 1;
  }

  // Server: the key that the client names, if it was imported for the hash of the suite that we chose.
  static int FindPsk(SSL* ssl, const unsigned char* id, size_t id_size, SSL_SESSION** session) {
    TlsSession& self = Of(ssl);
    const std::string& job = self.settings_->psk()->job;
    *session = nullptr;
    if (JobOf({reinterpret_cast<const char*>(id), id_size}) != job) {
      self.reason_ = "the client's key is of another job than " + job;
      return 1;
    }
    self.reason_.clear();
    const SSL_CIPHER* chosen = SSL_get_pending_cipher(ssl);
    const auto suite = chosen == nullptr ? std::nullopt : SuiteOfTls(SSL_CIPHER_get_protocol_id(chosen));
    if (!suite) return 1;
    const ImportedPsk& psk = Imported(*self.settings_, *suite);
    if (std::ranges::equal(psk.identity, ByteSpan(id, id_size)))
      *session = MakePskSession(chosen, psk).release();
    return 1;
  }

  // Either side, for each certificate of the peer's chain, the peer's own last.
  static int Verify(int preverified, X509_STORE_CTX* store) {
    const int index = SSL_get_ex_data_X509_STORE_CTX_idx();
    TlsSession& self = Of(static_cast<SSL*>(X509_STORE_CTX_get_ex_data(store, index)));
    const int depth = X509_STORE_CTX_get_error_depth(store);
    const int error = X509_STORE_CTX_get_error(store);
    const std::string whose =
        depth == 0 || IsUnknownIssuer(error) ? "the peer's certificate " : "the CA's certificate ";
    if (preverified != 1) {
      self.reason_ = whose + CertificateProblem(error);
      if (self.settings_->psk() != nullptr)
        self.reason_ = "the server uses certificates, our key is pre-shared";
      return 0;
    }
    if (depth != 0) return 1;
    const Status allowed = self.CheckPeer(*X509_STORE_CTX_get_current_cert(store), &self.peer_);
    if (allowed.ok()) return self.TakeChain(*store), 1;
    self.reason_ = whose + allowed.message();
    X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
    return 0;
  }
};

namespace {
SecretBytes NewSeed(const TlsSettings& settings, bool is_client) {
  if (!settings.Replays(is_client)) return {};
  SecretBytes seed(replayed_chance::kSeedBytes);
  LH_CHECK(RAND_priv_bytes(seed.span().data(), static_cast<int>(seed.size())) == 1);
  return seed;
}
}  // namespace

TlsSession::TlsSession(const std::shared_ptr<const TlsSettings>& settings, bool is_client)
    : TlsSession(settings, is_client, NewSeed(*settings, is_client)) {}

TlsSession::TlsSession(std::shared_ptr<const TlsSettings> settings, bool is_client, SecretBytes seed)
    : settings_(std::move(settings)),
      is_client_(is_client),
      seed_(std::move(seed)),
      ssl_(SSL_new(is_client ? settings_->client.get() : settings_->server.get())),
      incoming_(BIO_new(BIO_s_mem())),
      outgoing_(BIO_new(BIO_s_mem())) {
  LH_CHECK(ssl_ != nullptr && incoming_ != nullptr && outgoing_ != nullptr);
  SSL* ssl = ssl_.get();
  SSL_set_bio(ssl, incoming_, outgoing_);
  SSL_set_app_data(ssl, this);
  SSL_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, &TlsCallbacks::Verify);
  if (settings_->psk() == nullptr) {
    X509_VERIFY_PARAM_set_time(SSL_get0_param(ssl), settings_->options.wall_clock());
  } else if (is_client) {
    SSL_set_psk_use_session_callback(ssl, &TlsCallbacks::OfferPsk);
  } else {
    SSL_set_verify(ssl, SSL_VERIFY_NONE, nullptr);  // asks for no certificate
    SSL_set_psk_find_session_callback(ssl, &TlsCallbacks::FindPsk);
  }
  is_client ? SSL_set_connect_state(ssl) : SSL_set_accept_state(ssl);
  if (!is_client) return;
  if (!seed_.empty()) replayed_chance::Replay(seed_.span());
  Step();
  RefreshChance();
}

std::unique_ptr<transport::HandshakeCrypto> TlsSession::Again() const {
  if (seed_.empty() || received_bytes_ > 0) return nullptr;
  auto again = std::unique_ptr<TlsSession>(new TlsSession(settings_, is_client_, seed_));
  again->seed_.Wipe();
  return again;
}

void TlsSession::RefreshChance() const {
  if (settings_->Replays(is_client_)) replayed_chance::Refresh();
}

TlsSession::~TlsSession() = default;

Status TlsSession::HandleData(ByteSpan bytes) {
  if (!failure_.ok()) return failure_;
  if (deaf_) return {};
  const size_t limit = complete_ ? kMaxBytesAfterHandshake : kMaxHandshakeBytes;
  if (bytes.size() > limit - std::min(limit, received_bytes_)) {
    Fail(Status(StatusCode::kProtocolViolation,
                complete_ ? "TLS: more after the handshake" : "TLS: a handshake of more than 64 KiB"));
    return failure_;
  }
  received_bytes_ += bytes.size();
  if (bytes.empty()) return {};
  LH_CHECK(BIO_write(incoming_, bytes.data(), static_cast<int>(bytes.size())) ==
           static_cast<int>(bytes.size()));
  complete_ ? ReadAfterHandshake() : Advance();
  return failure_;
}

std::vector<uint8_t> TlsSession::TakeData() {
  std::vector<uint8_t> out(BIO_ctrl_pending(outgoing_));
  if (!out.empty()) {
    LH_CHECK(BIO_read(outgoing_, out.data(), static_cast<int>(out.size())) == static_cast<int>(out.size()));
  }
  return out;
}

const PeerIdentity& TlsSession::peer() const {
  LH_CHECK(complete_);
  return peer_;
}

std::unique_ptr<transport::PacketProtection> TlsSession::MakeProtection(ByteSpan context) {
  LH_CHECK(complete_ && !protection_made_);
  protection_made_ = true;
  const Hash hash = AeadHash(suite());
  SecretBytes master(HashBytes(hash));
  LH_CHECK(SSL_export_keying_material(ssl_.get(), master.span().data(), master.size(), kExporterLabel.data(),
                                      kExporterLabel.size(), context.data(), context.size(), 1) == 1);
  SecretBytes client = HkdfExpandLabel(hash, master.span(), "client", {}, HashBytes(hash));
  SecretBytes server = HkdfExpandLabel(hash, master.span(), "server", {}, HashBytes(hash));
  if (!is_client_) std::swap(client, server);
  return std::make_unique<AeadProtection>(suite(), std::move(client), std::move(server));
}

AeadSuite TlsSession::suite() const {
  LH_CHECK(complete_);
  return *SuiteOfTls(SSL_CIPHER_get_protocol_id(SSL_get_current_cipher(ssl_.get())));
}

void TlsSession::Advance() {
  RefreshChance();
  Step();
}

void TlsSession::Step() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) {
    Finish();
  } else if (SSL_get_error(ssl_.get(), result) != SSL_ERROR_WANT_READ) {
    Fail(Explain());
  }
}

// What the handshake's end must have shown, apart from what the callbacks have checked on its way.
void TlsSession::Finish() {
  if (settings_->psk() != nullptr) {
    if (SSL_session_reused(ssl_.get()) != 1) return Fail(Denied("the pre-shared key was not used"));
    peer_ = {.kind = PeerIdentity::Kind::kPsk,
             .job = settings_->psk()->job,
             .role = {},
             .name = {},
             .trust = settings_->trusts.front()};
  } else if (SSL_get_verify_result(ssl_.get()) != X509_V_OK ||
             peer_.kind != PeerIdentity::Kind::kCertificate) {
    return Fail(Denied("the peer showed no certificate"));
  }
  complete_ = true;
  received_bytes_ = 0;
  if (BIO_ctrl_pending(incoming_) > 0) ReadAfterHandshake();
}

void TlsSession::ReadAfterHandshake() {
  ERR_clear_error();
  std::array<uint8_t, 64> data{};
  RefreshChance();
  const int result = SSL_read(ssl_.get(), data.data(), data.size());
  const Status why = result > 0 ? Status(StatusCode::kProtocolViolation, "TLS: application data") : Explain();
  if (result <= 0 && SSL_get_error(ssl_.get(), result) == SSL_ERROR_WANT_READ) return;
  // The server seals its alerts, and its certificate is known by now; any host can send what does not open.
  deaf_ = settings_->Replays(is_client_) && why.code() != StatusCode::kPermissionDenied;
  if (!deaf_) Fail(why);
}

void TlsSession::Fail(Status status) {
  failure_ = std::move(status);
  complete_ = false;
  ERR_clear_error();
}

Status TlsSession::Explain() const {
  if (!reason_.empty()) return Denied(reason_);
  const unsigned long error = ERR_peek_last_error();
  const int reason = ERR_GET_REASON(error);
  const std::string side = is_client_ ? "the server" : "the client";
  if (ERR_GET_LIB(error) == ERR_LIB_SSL && reason > SSL_AD_REASON_OFFSET) {
    return Denied(side + " refuses our key: TLS alert " +
                  SSL_alert_desc_string_long(reason - SSL_AD_REASON_OFFSET));
  }
  switch (reason) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
      return Denied("the client has another pre-shared key");
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return Denied("the client showed no certificate");
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
      if (settings_->psk() != nullptr) return Denied("the client has no pre-shared key");
      break;
    case SSL_R_NO_SHARED_CIPHER:
      return Status(StatusCode::kSettingsMismatch, "TLS: no cipher suite in common with " + side);
    default:
      break;
  }
  const char* words = ERR_reason_error_string(error);
  return Status(StatusCode::kProtocolViolation,
                "TLS: " + side + " sent what cannot be: " + (words == nullptr ? "closed" : words));
}

Status TlsSession::CheckPeer(const x509_st& certificate, PeerIdentity* identity) const {
  Result<PeerIdentity> named = IdentityOf(certificate);
  if (!named.ok()) return named.status();
  const PeerIdentity& peer = *named;
  const TlsOptions& options = settings_->options;
  if (peer.job != options.job) return Denied("is of job " + peer.job + ", not of " + options.job);
  const bool is_server = peer.role == RoleName(Role::kServer);
  if (is_client_ && !is_server) return Denied("is for a " + peer.role + ", not for a server");
  // Another server of the job is on no list: by its certificate workers trust it as they trust this one.
  if (!is_client_ && !is_server && !options.allow.Allows(peer.role, peer.name)) {
    return Denied("is of " + peer.role + " " + peer.name + ", which is not on the list of allowed names");
  }
  if (is_client_ && !options.expected_server.empty() && peer.name != options.expected_server) {
    return Denied("is of server " + peer.name + ", not of " + options.expected_server);
  }
  *identity = peer;
  return {};
}

// The chain ends with the authority that we trust; it is worth nothing from the first end of its parts on.
void TlsSession::TakeChain(const x509_store_ctx_st& store) {
  const STACK_OF(X509)* const chain = X509_STORE_CTX_get0_chain(&store);
  const int size = sk_X509_num(chain);
  for (int i = 0; i < size; ++i) peer_.expires = std::min(peer_.expires, ExpiryOf(*sk_X509_value(chain, i)));
  if (size > 0) peer_.trust = TrustOf(*sk_X509_value(chain, size - 1));
}

}  // namespace longhaul::crypto
