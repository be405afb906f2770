#include "transport/crypto/openssl_ptr.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace longhaul::crypto {

void OpenSslFree::operator()(bio_st* p) const { BIO_free(p); }
void OpenSslFree::operator()(evp_cipher_st* p) const { EVP_CIPHER_free(p); }
void OpenSslFree::operator()(evp_cipher_ctx_st* p) const { EVP_CIPHER_CTX_free(p); }
void OpenSslFree::operator()(evp_mac_ctx_st* p) const { EVP_MAC_CTX_free(p); }
void OpenSslFree::operator()(evp_md_ctx_st* p) const { EVP_MD_CTX_free(p); }
void OpenSslFree::operator()(evp_pkey_ctx_st* p) const { EVP_PKEY_CTX_free(p); }
void OpenSslFree::operator()(evp_pkey_st* p) const { EVP_PKEY_free(p); }
void OpenSslFree::operator()(ssl_ctx_st* p) const { SSL_CTX_free(p); }
void OpenSslFree::operator()(ssl_session_st* p) const { SSL_SESSION_free(p); }
void OpenSslFree::operator()(ssl_st* p) const { SSL_free(p); }
void OpenSslFree::operator()(x509_st* p) const { X509_free(p); }

std::string TakeOpenSslError() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "unknown reason" : reason;
}

}  // namespace longhaul::crypto
