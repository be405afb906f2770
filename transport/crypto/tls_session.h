// One TLS 1.3 handshake between two memory buffers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/core/security/security.h"
#include "transport/crypto/openssl_ptr.h"
#include "transport/crypto/tls_settings.h"

struct x509_store_ctx_st;

namespace longhaul::crypto {

// The peer's identity is checked inside the handshake, so a refused peer gets an alert and no keys.
class TlsSession : public transport::HandshakeCrypto {
 public:
  TlsSession(const std::shared_ptr<const TlsSettings>& settings, bool is_client);
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;
  ~TlsSession() override;

  // After completion only an alert may still come: a client is complete before the server has judged it.
  // A failure after completion takes complete() back. With certificates any host can send a client bytes:
  // those that are no alert of the server end nothing, and nothing is heard after them.
  Status HandleData(ByteSpan bytes) override;
  std::vector<uint8_t> TakeData() override;
  bool complete() const override { return complete_; }
  // With certificates.
  std::unique_ptr<transport::HandshakeCrypto> Again() const override;
  const transport::PeerIdentity& peer() const override;
  // Once: two protections of the same keys would use every nonce twice.
  std::unique_ptr<transport::PacketProtection> MakeProtection(ByteSpan context) override;

  // Also REQUIRES: complete().
  AeadSuite suite() const;

 private:
  friend struct TlsCallbacks;

  TlsSession(std::shared_ptr<const TlsSettings> settings, bool is_client, SecretBytes seed);
  // Client with a certificate: OpenSSL may need chance (replayed_chance.h).
  void RefreshChance() const;
  void Advance();
  void Step();
  void Finish();
  void ReadAfterHandshake();
  void Fail(Status status);
  // The failure of OpenSSL's last call in words.
  Status Explain() const;
  // Whether that certificate's holder may talk to us; kPermissionDenied gives the reason.
  Status CheckPeer(const x509_st& certificate, transport::PeerIdentity* identity) const;
  // Into the peer's identity: who vouches for it, and until when.
  void TakeChain(const x509_store_ctx_st& store);

  std::shared_ptr<const TlsSettings> settings_;
  bool is_client_;
  SecretBytes seed_;  // of the ClientHello, as long as nothing has answered it
  OpenSslPtr<ssl_st> ssl_;
  bio_st* incoming_ = nullptr;  // ssl_'s
  bio_st* outgoing_ = nullptr;  // ssl_'s
  size_t received_bytes_ = 0;   // of the handshake, then since its end
  bool complete_ = false;
  bool protection_made_ = false;
  bool deaf_ = false;  // what came after the handshake was no record of TLS
  transport::PeerIdentity peer_;
  std::string reason_;  // of a refusal, known before OpenSSL's own error
  Status failure_;
};

}  // namespace longhaul::crypto
