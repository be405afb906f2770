#include "tests/operator/api/test_ca.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

namespace longhaul::kube::api {
namespace {

std::shared_ptr<evp_pkey_st> NewKey() {
  return {EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"), EVP_PKEY_free};
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

std::string Pem(X509* certificate) {
  BIO* bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(bio, certificate);
  return TextOf(bio);
}

std::shared_ptr<x509_st> Make(const std::string& name, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key,
                              const std::string& alternative, int days) {
  static int serial = 1;
  std::shared_ptr<x509_st> made(X509_new(), X509_free);
  X509* c = made.get();
  X509_set_version(c, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(c), serial++);
  X509_gmtime_adj(X509_getm_notBefore(c), -10L * 86400);
  X509_gmtime_adj(X509_getm_notAfter(c), days * 86400L);
  X509_set_pubkey(c, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(c), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(c, X509_get_subject_name(issuer != nullptr ? issuer : c));
  const auto extend = [c](int nid, const std::string& value) {
    X509_EXTENSION* extension = X509V3_EXT_nconf_nid(nullptr, nullptr, nid, value.c_str());
    EXPECT_EQ(X509_add_ext(c, extension, -1), 1);
    X509_EXTENSION_free(extension);
  };
  extend(NID_basic_constraints, issuer == nullptr ? "critical,CA:TRUE" : "CA:FALSE");
  if (!alternative.empty()) extend(NID_subject_alt_name, alternative);
  EXPECT_NE(X509_sign(c, issuer_key, EVP_sha256()), 0);
  return made;
}

}  // namespace

TestCa::TestCa(const std::string& name)
    : key_(NewKey()), certificate_(Make(name, key_.get(), nullptr, key_.get(), "", 10)) {}

std::string TestCa::Certificate() const { return Pem(certificate_.get()); }

TestCa::Issued TestCa::Issue(const std::string& name, const std::string& alternative, int days) const {
  const auto key = NewKey();
  const auto certificate = Make(name, key.get(), certificate_.get(), key_.get(), alternative, days);
  BIO* bio = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return {Pem(certificate.get()), TextOf(bio)};
}

ssl_ctx_st* MakeTlsContext(const std::string& certificate_and_key, const std::string& client_ca) {
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  const auto read = [](const std::string& pem) {
    return BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
  };
  BIO* bio = read(certificate_and_key);
  X509* certificate = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  EXPECT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
  X509_free(certificate);
  BIO_free(bio);
  bio = read(certificate_and_key);
  EVP_PKEY* key = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
  EXPECT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);
  EVP_PKEY_free(key);
  BIO_free(bio);
  if (client_ca.empty()) return context;
  bio = read(client_ca);
  X509* ca = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  X509_STORE_add_cert(SSL_CTX_get_cert_store(context), ca);
  X509_free(ca);
  BIO_free(bio);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return context;
}

}  // namespace longhaul::kube::api
