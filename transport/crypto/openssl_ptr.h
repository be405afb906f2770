// Owners of OpenSSL's objects, without its headers.
#pragma once

#include <memory>
#include <string>

struct bio_st;
struct evp_cipher_st;
struct evp_cipher_ctx_st;
struct evp_mac_ctx_st;
struct evp_md_ctx_st;
struct evp_pkey_ctx_st;
struct evp_pkey_st;
struct ossl_lib_ctx_st;
struct ssl_ctx_st;
struct ssl_session_st;
struct ssl_st;
struct x509_st;

namespace longhaul::crypto {

struct OpenSslFree {
  void operator()(bio_st* p) const;
  void operator()(evp_cipher_st* p) const;
  void operator()(evp_cipher_ctx_st* p) const;
  void operator()(evp_mac_ctx_st* p) const;
  void operator()(evp_md_ctx_st* p) const;
  void operator()(evp_pkey_ctx_st* p) const;
  void operator()(evp_pkey_st* p) const;
  void operator()(ssl_ctx_st* p) const;
  void operator()(ssl_session_st* p) const;
  void operator()(ssl_st* p) const;
  void operator()(x509_st* p) const;
};

template <typename T>
using OpenSslPtr = std::unique_ptr<T, OpenSslFree>;

using CipherContext = OpenSslPtr<evp_cipher_ctx_st>;
using MacContext = OpenSslPtr<evp_mac_ctx_st>;
using PrivateKey = OpenSslPtr<evp_pkey_st>;
using Certificate = OpenSslPtr<x509_st>;
using Bio = OpenSslPtr<bio_st>;

// The reason of OpenSSL's latest error on this thread, in its words; the queue is empty afterwards.
std::string TakeOpenSslError();

}  // namespace longhaul::crypto
