#include "transport/crypto/certificate.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <algorithm>
#include <array>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace longhaul::crypto {
namespace {

constexpr std::string_view kBeginKey = "-----BEGIN PRIVATE KEY-----\n";
constexpr std::string_view kEndKey = "\n-----END PRIVATE KEY-----\n";
// What stands before the key in its PKCS #8 encoding (RFC 8410 §7 and §10.3).
constexpr std::array<uint8_t, 16> kPrefix = {0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06,
                                             0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20};
constexpr size_t kDerBytes = kPrefix.size() + kEd25519Bytes;
constexpr size_t kBase64Bytes = kDerBytes / 3 * 4;  // 48 bytes: one line without padding
static_assert(kDerBytes % 3 == 0);

// Without a callback OpenSSL would ask for a password at the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

// nullptr when the text holds anything but an Ed25519 key in exactly the form of PrintEd25519.
PrivateKey ParseOwnForm(std::string_view pem, OSSL_LIB_CTX* library) {
  const size_t begin = pem.find(kBeginKey);
  if (begin == std::string_view::npos) return nullptr;
  pem.remove_prefix(begin + kBeginKey.size());
  if (pem.size() < kBase64Bytes ||
      !pem.substr(kBase64Bytes).starts_with(kEndKey.substr(0, kEndKey.size() - 1))) {
    return nullptr;
  }
  SecretBytes der(kDerBytes);
  const auto* base64 = reinterpret_cast<const uint8_t*>(pem.data());
  if (EVP_DecodeBlock(der.span().data(), base64, kBase64Bytes) != static_cast<int>(kDerBytes) ||
      !std::equal(kPrefix.begin(), kPrefix.end(), der.span().begin())) {
    return nullptr;
  }
  return MakeEd25519(ByteSpan(der.span()).last(kEd25519Bytes), library);
}

// A signature of what is never signed elsewhere (TLS's own begin with 64 spaces), since OpenSSL hands out the
// key itself only through a buffer that it does not wipe. Ed25519 signs without chance (RFC 8032 §5.1.6).
SecretBytes SignatureOfLabel(const PrivateKey& key) {
  constexpr std::string_view kLabel = "longhaul v1 lasting secret";
  const OpenSslPtr<evp_md_ctx_st> context(EVP_MD_CTX_new());
  LH_CHECK(context != nullptr);
  LH_CHECK(EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) == 1);
  SecretBytes signature(2 * kEd25519Bytes);
  size_t size = signature.size();
  LH_CHECK(EVP_DigestSign(context.get(), signature.span().data(), &size,
                          reinterpret_cast<const uint8_t*>(kLabel.data()), kLabel.size()) == 1);
  return signature;
}

}  // namespace

PrivateKey MakeEd25519(ByteSpan raw, OSSL_LIB_CTX* library) {
  return PrivateKey(EVP_PKEY_new_raw_private_key_ex(library, "ED25519", nullptr, raw.data(), raw.size()));
}

PrivateKey ParsePrivateKey(std::string_view pem, OSSL_LIB_CTX* library) {
  if (PrivateKey key = ParseOwnForm(pem, library)) return key;
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  LH_CHECK(bio != nullptr);
  PrivateKey key(PEM_read_bio_PrivateKey_ex(bio.get(), nullptr, NoPassword, nullptr, library, nullptr));
  ERR_clear_error();
  return key;
}

SecretBytes PrintEd25519(ByteSpan raw) {
  LH_CHECK_OP(raw.size(), ==, kEd25519Bytes);
  SecretBytes der(kDerBytes);
  std::copy(raw.begin(), raw.end(), std::copy(kPrefix.begin(), kPrefix.end(), der.span().begin()));
  SecretBytes base64(kBase64Bytes + 1);  // EVP_EncodeBlock ends with a zero
  EVP_EncodeBlock(base64.span().data(), der.span().data(), static_cast<int>(kDerBytes));
  SecretBytes text(kBeginKey.size() + kBase64Bytes + kEndKey.size());
  auto out = std::copy(kBeginKey.begin(), kBeginKey.end(), text.span().begin());
  out = std::copy_n(base64.span().begin(), kBase64Bytes, out);
  std::copy(kEndKey.begin(), kEndKey.end(), out);
  return text;
}

SecretBytes LastingSecret(const PrivateKey& key) {
  if (EVP_PKEY_is_a(key.get(), "ED25519") == 1) return SignatureOfLabel(key);
  unsigned char* der = nullptr;
  const int size = i2d_PrivateKey(key.get(), &der);
  LH_CHECK_OP(size, >, 0);
  const MutableByteSpan encoded(der, static_cast<size_t>(size));
  SecretBytes bytes{ByteSpan(encoded)};
  WipeBytes(encoded);
  OPENSSL_free(der);
  return bytes;
}

namespace {

Status Damaged(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

struct GeneralNamesFree {
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};

std::optional<std::string_view> UriOf(const GENERAL_NAME& name) {
  if (name.type != GEN_URI) return std::nullopt;
  const ASN1_IA5STRING* text = name.d.uniformResourceIdentifier;
  return std::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                          static_cast<size_t>(ASN1_STRING_length(text)));
}

}  // namespace

// Only the certificates' blocks go to OpenSSL, whose reader would leave what it skips, the private key, in
// the heap.
Result<std::vector<Certificate>> ParseCertificates(std::string_view text) {
  constexpr std::string_view kBegin = "-----BEGIN CERTIFICATE-----", kEnd = "-----END CERTIFICATE-----";
  std::vector<Certificate> found;
  for (size_t begin = text.find(kBegin); begin != std::string_view::npos; begin = text.find(kBegin)) {
    text.remove_prefix(begin);
    const size_t end = text.find(kEnd);
    if (end == std::string_view::npos) return Damaged("a certificate is damaged");
    const size_t size = end + kEnd.size();
    const Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(size)));
    LH_CHECK(bio != nullptr);
    // Certificates are never encrypted: an empty password, so that OpenSSL does not ask for one at the
    // terminal.
    char no_password[] = "";
    Certificate next(PEM_read_bio_X509(bio.get(), nullptr, nullptr, no_password));
    ERR_clear_error();
    if (next == nullptr) return Damaged("a certificate is damaged");
    if (found.size() == kMaxCertificates) return Damaged("more than 16 certificates");
    found.push_back(std::move(next));
    text.remove_prefix(size);
  }
  return found;
}

Result<transport::PeerIdentity> IdentityOf(const x509_st& certificate) {
  const std::unique_ptr<GENERAL_NAMES, GeneralNamesFree> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::optional<transport::PeerIdentity> found;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const std::optional<std::string_view> uri = UriOf(*sk_GENERAL_NAME_value(names.get(), i));
    std::optional<transport::PeerIdentity> identity = uri ? ParseIdentityUri(*uri) : std::nullopt;
    if (identity && found)
      return Status(StatusCode::kPermissionDenied, "names more than one longhaul:// identity");
    if (identity) found = std::move(identity);
  }
  ERR_clear_error();
  if (!found) return Status(StatusCode::kPermissionDenied, "names no identity longhaul://JOB/ROLE/NAME");
  found->expires = ExpiryOf(certificate);
  return *found;
}

std::string TrustText(ByteSpan digest) { return HexOf(digest.first(8)); }

int64_t ExpiryOf(const x509_st& certificate) {
  tm utc{};
  return ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &utc) == 1 ? int64_t{::timegm(&utc)} : 0;
}

std::string TrustOf(const x509_st& authority) {
  std::array<uint8_t, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  LH_CHECK(X509_pubkey_digest(&authority, EVP_sha256(), digest.data(), &size) == 1);
  return TrustText(digest);
}

namespace {

constexpr std::string_view kScheme = "longhaul://";
constexpr std::string_view kRanks = "?ranks=";

}  // namespace

std::string_view RoleName(Role role) {
  switch (role) {
    case Role::kServer:
      return "server";
    case Role::kWorker:
      return "worker";
    case Role::kTool:
      return "tool";
  }
  return "unknown";
}

std::optional<Role> ParseRole(std::string_view name) {
  for (Role role : {Role::kServer, Role::kWorker, Role::kTool}) {
    if (name == RoleName(role)) return role;
  }
  return std::nullopt;
}

Status CheckKeyName(std::string_view what, std::string_view value) {
  if (IsKeyName(value)) return {};
  return Status(StatusCode::kInvalidArgument,
                std::string(what) + " of a key must be 1 to 64 of the characters A-Z a-z 0-9 . _ -");
}

std::string IdentityUri(std::string_view job, Role role, std::string_view name,
                        const std::optional<RankRange>& ranks) {
  std::string uri(kScheme);
  uri.append(job).append("/").append(RoleName(role)).append("/").append(name);
  return ranks ? uri.append(kRanks).append(ranks->ToString()) : uri;
}

std::optional<transport::PeerIdentity> ParseIdentityUri(std::string_view uri) {
  if (!uri.starts_with(kScheme)) return std::nullopt;
  std::string_view rest = uri.substr(kScheme.size());
  std::optional<RankRange> ranks;
  if (const size_t query = rest.find('?'); query != std::string_view::npos) {
    if (rest.substr(query).starts_with(kRanks)) ranks = RankRange::Parse(rest.substr(query + kRanks.size()));
    if (!ranks) return std::nullopt;
    rest = rest.substr(0, query);
  }
  std::array<std::string_view, 3> parts;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t end = i + 1 < parts.size() ? rest.find('/') : rest.size();
    if (end == std::string_view::npos) return std::nullopt;
    parts[i] = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const bool valid = IsKeyName(parts[0]) && ParseRole(parts[1]) && IsKeyName(parts[2]);
  if (!valid || (ranks && parts[1] != RoleName(Role::kWorker))) return std::nullopt;
  return transport::PeerIdentity{.kind = transport::PeerIdentity::Kind::kCertificate,
                                 .job = std::string(parts[0]),
                                 .role = std::string(parts[1]),
                                 .name = std::string(parts[2]),
                                 .ranks = ranks};
}

}  // namespace longhaul::crypto
