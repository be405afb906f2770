#include "transport/crypto/keygen.h"

#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "transport/crypto/certificate.h"
#include "transport/crypto/credentials.h"
#include "transport/crypto/openssl_ptr.h"

namespace longhaul::crypto {
namespace {

constexpr std::string_view kCaUsage = "critical,keyCertSign,cRLSign";
constexpr std::string_view kLeafUsage = "critical,digitalSignature";

Status Invalid(std::string message) { return Status(StatusCode::kInvalidArgument, std::move(message)); }

Status Failed(std::string_view what) {
  return Status(StatusCode::kInternal, std::string(what) + ": " + TakeOpenSslError());
}

// A certificate under construction: the first failure stays.
class CertificateMaker {
 public:
  CertificateMaker() : certificate_(X509_new()) { LH_CHECK(certificate_ != nullptr); }

  x509_st* get() { return certificate_.get(); }
  bool ok() const { return ok_; }
  Certificate Take() { return std::move(certificate_); }

  void Basics(evp_pkey_st* key, std::string_view common_name, const Validity& validity) {
    x509_st* c = certificate_.get();
    std::array<uint8_t, 16> serial{};
    ok_ = ok_ && RAND_bytes(serial.data(), serial.size()) == 1;
    serial[0] =
        static_cast<uint8_t>((serial[0] & 0x7f) | 0x40);  // positive and of full length (RFC 5280 §4.1.2.2)
    BIGNUM* number = BN_bin2bn(serial.data(), serial.size(), nullptr);
    ok_ = ok_ && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(c)) != nullptr;
    BN_free(number);
    ok_ = ok_ && X509_set_version(c, X509_VERSION_3) == 1 && X509_set_pubkey(c, key) == 1 &&
          ASN1_TIME_set(X509_getm_notBefore(c), validity.not_before) != nullptr &&
          ASN1_TIME_set(X509_getm_notAfter(c), validity.not_after) != nullptr &&
          X509_NAME_add_entry_by_NID(X509_get_subject_name(c), NID_commonName, MBSTRING_UTF8,
                                     reinterpret_cast<const uint8_t*>(common_name.data()),
                                     static_cast<int>(common_name.size()), -1, 0) == 1;
  }

  // `value` in the words of x509v3_config(5).
  void Extension(x509_st* issuer, int nid, std::string_view value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, certificate_.get(), nullptr, nullptr, 0);
    X509_EXTENSION* extension = X509V3_EXT_nconf_nid(nullptr, &context, nid, std::string(value).c_str());
    ok_ = ok_ && extension != nullptr && X509_add_ext(certificate_.get(), extension, -1) == 1;
    X509_EXTENSION_free(extension);
  }

  void Sign(x509_st* issuer, evp_pkey_st* key) {
    // Ed25519 hashes by itself.
    const bool hashes = EVP_PKEY_is_a(key, "ED25519") == 1 || EVP_PKEY_is_a(key, "ED448") == 1;
    ok_ = ok_ && X509_set_issuer_name(certificate_.get(), X509_get_subject_name(issuer)) == 1 &&
          X509_sign(certificate_.get(), key, hashes ? nullptr : EVP_sha256()) != 0;
  }

 private:
  Certificate certificate_;
  bool ok_ = true;
};

// A private key and certificates as PEM, in a buffer that is wiped.
Result<SecretBytes> PrintBundle(ByteSpan raw_key, std::initializer_list<x509_st*> certificates) {
  const Bio bio(BIO_new(BIO_s_mem()));
  bool ok = bio != nullptr;
  for (x509_st* certificate : certificates) ok = ok && PEM_write_bio_X509(bio.get(), certificate) == 1;
  if (!ok) return Failed("cannot print certificates");
  char* printed = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &printed);
  const SecretBytes head = PrintEd25519(raw_key);
  SecretBytes text(head.size() + static_cast<size_t>(size));
  std::copy_n(printed, size, std::copy(head.span().begin(), head.span().end(), text.span().begin()));
  return text;
}

Status CheckValidity(const Validity& validity) {
  return validity.not_before <= validity.not_after ? Status() : Invalid("certificate: ends before it begins");
}

// Ours are within the range of time_t.
int64_t SecondsOf(const ASN1_TIME* time) {
  tm utc{};
  return ASN1_TIME_to_tm(time, &utc) == 1 ? int64_t{::timegm(&utc)} : 0;
}

Validity ValidityOf(const x509_st* certificate) {
  return {.not_before = SecondsOf(X509_get0_notBefore(certificate)),
          .not_after = SecondsOf(X509_get0_notAfter(certificate))};
}

struct Authority {
  Certificate certificate;
  PrivateKey key;
};

Result<Authority> ParseAuthority(std::string_view ca_bundle) {
  if (ca_bundle.size() > kMaxKeyFileBytes) return Invalid("CA file: larger than 64 KiB");
  PrivateKey key = ParsePrivateKey(ca_bundle);
  Result<std::vector<Certificate>> certificates = ParseCertificates(ca_bundle);
  if (key == nullptr || !certificates.ok() || certificates->empty()) {
    return Invalid("CA file: no private key or no certificate");
  }
  Certificate& ca = certificates->front();
  if (X509_check_ca(ca.get()) == 0 || X509_check_private_key(ca.get(), key.get()) != 1) {
    ERR_clear_error();
    return Invalid("CA file: the certificate is no CA's, or not the private key's");
  }
  return Authority{std::move(ca), std::move(key)};
}

// A server is a client of the first one of its job.
std::string_view KeyUsageOf(Role role) {
  return role == Role::kServer ? "serverAuth,clientAuth" : "clientAuth";
}

}  // namespace

Result<SecretBytes> NewPsk(std::string_view job) {
  if (Status valid = CheckKeyName("job", job); !valid.ok()) return valid;
  PskKey key{.job = std::string(job), .psk = SecretBytes(kPskBytes)};
  if (RAND_priv_bytes(key.psk.span().data(), kPskBytes) != 1) return Failed("no random bytes");
  return PrintPskKey(key);
}

Result<SecretBytes> NewCa(std::string_view name, const Validity& validity) {
  if (Status valid = CheckKeyName("name", name); !valid.ok()) return valid;
  if (Status valid = CheckValidity(validity); !valid.ok()) return valid;
  SecretBytes raw(kEd25519Bytes);
  if (RAND_priv_bytes(raw.span().data(), kEd25519Bytes) != 1) return Failed("no random bytes");
  const PrivateKey key = MakeEd25519(raw.span());
  if (key == nullptr) return Failed("cannot make a key");
  CertificateMaker maker;
  maker.Basics(key.get(), name, validity);
  maker.Extension(maker.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  maker.Extension(maker.get(), NID_key_usage, kCaUsage);
  maker.Extension(maker.get(), NID_subject_key_identifier, "hash");
  maker.Sign(maker.get(), key.get());
  if (!maker.ok()) return Failed("cannot make a CA certificate");
  return PrintBundle(raw.span(), {maker.get()});
}

Result<Validity> CaValidity(std::string_view ca_bundle) {
  const Result<Authority> authority = ParseAuthority(ca_bundle);
  if (!authority.ok()) return authority.status();
  return ValidityOf(authority->certificate.get());
}

Result<SecretBytes> IssueCertificate(std::string_view ca_bundle, std::string_view job, Role role,
                                     std::string_view name, const Validity& validity,
                                     const std::optional<RankRange>& ranks) {
  if (Status valid = CheckKeyName("job", job); !valid.ok()) return valid;
  if (Status valid = CheckKeyName("name", name); !valid.ok()) return valid;
  if (Status valid = CheckValidity(validity); !valid.ok()) return valid;
  if (ranks && role != Role::kWorker) return Invalid("ranks are for workers");
  const Result<Authority> authority = ParseAuthority(ca_bundle);
  if (!authority.ok()) return authority.status();
  const Certificate& ca = authority->certificate;
  const PrivateKey& ca_key = authority->key;
  SecretBytes raw(kEd25519Bytes);
  if (RAND_priv_bytes(raw.span().data(), kEd25519Bytes) != 1) return Failed("no random bytes");
  const PrivateKey key = MakeEd25519(raw.span());
  if (key == nullptr) return Failed("cannot make a key");
  CertificateMaker maker;
  maker.Basics(key.get(), name, validity);
  maker.Extension(ca.get(), NID_basic_constraints, "critical,CA:FALSE");
  maker.Extension(ca.get(), NID_key_usage, kLeafUsage);
  maker.Extension(ca.get(), NID_ext_key_usage, KeyUsageOf(role));
  maker.Extension(ca.get(), NID_subject_alt_name, "URI:" + IdentityUri(job, role, name, ranks));
  maker.Extension(ca.get(), NID_subject_key_identifier, "hash");
  maker.Extension(ca.get(), NID_authority_key_identifier, "keyid");
  maker.Sign(ca.get(), ca_key.get());
  if (!maker.ok()) return Failed("cannot issue a certificate");
  return PrintBundle(raw.span(), {maker.get(), ca.get()});
}

}  // namespace longhaul::crypto
