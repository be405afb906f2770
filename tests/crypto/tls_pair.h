// A client and a server of TLS in one test, and the keys they use.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/crypto/credentials.h"
#include "transport/crypto/keygen.h"
#include "transport/crypto/tls_security.h"

namespace longhaul::crypto {

// 2026-01-01; certificates of the tests are valid for a day around it.
inline constexpr int64_t kToday = 1'767'225'600;
inline constexpr Validity kThisDay = {kToday - 43'200, kToday + 43'200};

inline std::string Text(const Result<SecretBytes>& secret) {
  EXPECT_TRUE(secret.ok()) << secret.status().ToString();
  return secret.ok() ? std::string((*secret).text()) : std::string();
}

// The key file of one side, and what it is started with.
struct Side {
  std::string file;
  TlsOptions options;

  Side(std::string key_file, Role role) : file(std::move(key_file)) {
    options.role = role;
    options.wall_clock = [] { return kToday; };
  }
  Result<std::unique_ptr<TlsSecurity>> Try() const {
    Result<Credentials> credentials = ParseKeyFile(file);
    if (!credentials.ok()) return credentials.status();
    return TlsSecurity::Create(std::move(credentials).value(), options);
  }
  std::unique_ptr<TlsSecurity> Make() const {
    auto made = Try();
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return std::move(made).value();
  }
};

// What both sides had to say at the end.
struct Outcome {
  Status client, server;
  size_t client_bytes = 0, server_bytes = 0;
  int flights = 0;
};

// Carries the streams to and fro in pieces of at most `piece` bytes until neither side sends any more.
inline Outcome Exchange(transport::HandshakeCrypto& client, transport::HandshakeCrypto& server,
                        size_t piece = SIZE_MAX) {
  Outcome outcome;
  const auto deliver = [&](transport::HandshakeCrypto& from, transport::HandshakeCrypto& to, Status* status,
                           size_t* bytes) {
    const std::vector<uint8_t> data = from.TakeData();
    for (ByteSpan rest(data); !rest.empty();) {
      const ByteSpan next = rest.first(std::min(piece, rest.size()));
      *status = to.HandleData(next);
      rest = rest.subspan(next.size());
    }
    *bytes += data.size();
    outcome.flights += data.empty() ? 0 : 1;
    return !data.empty();
  };
  for (bool moved = true; moved;) {
    moved = deliver(client, server, &outcome.server, &outcome.client_bytes);
    moved = deliver(server, client, &outcome.client, &outcome.server_bytes) || moved;
  }
  return outcome;
}

// Two endpoints and one handshake between them.
struct TlsPair {
  TlsPair(const Side& client_side, const Side& server_side)
      : client_security(client_side.Make()),
        server_security(server_side.Make()),
        client(client_security->NewSession(true)),
        server(server_security->NewSession(false)) {}

  std::unique_ptr<TlsSecurity> client_security, server_security;
  std::unique_ptr<transport::HandshakeCrypto> client, server;
};

// Whether what one seals the other opens, both ways.
inline bool Understand(transport::PacketProtection& a, transport::PacketProtection& b) {
  const auto one_way = [](transport::PacketProtection& from, transport::PacketProtection& to) {
    std::vector<uint8_t> header(16), body(100, 5), tag(16);
    from.Seal(1, 0, header, body, tag);
    return to.Open(1, 0, header, body, tag) && body == std::vector<uint8_t>(100, 5);
  };
  return one_way(a, b) && one_way(b, a);
}

}  // namespace longhaul::crypto
