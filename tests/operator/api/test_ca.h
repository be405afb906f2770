// A certificate authority of a test, and what it issues; P-256, in PEM.
#pragma once

#include <memory>
#include <string>

struct evp_pkey_st;
struct x509_st;
struct ssl_ctx_st;

namespace longhaul::kube::api {

class TestCa {
 public:
  explicit TestCa(const std::string& name);
  // The authority's certificate.
  std::string Certificate() const;
  struct Issued {
    std::string certificate, key;
    std::string Both() const { return certificate + key; }
  };
  // alternative: "IP:127.0.0.1" or "DNS:kubernetes.default". days: until it expires; negative: it has.
  Issued Issue(const std::string& name, const std::string& alternative, int days = 1) const;

 private:
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_st> certificate_;
};

// For a server; its certificate and key in one text. client_ca: empty, or clients need a certificate of it.
ssl_ctx_st* MakeTlsContext(const std::string& certificate_and_key, const std::string& client_ca);

}  // namespace longhaul::kube::api
