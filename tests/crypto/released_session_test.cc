// What is left of a TLS session once it is gone: its secrets are those of every key of the connection.
#include <gtest/gtest.h>
#include <openssl/crypto.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <map>
#include <string>

#include "tests/crypto/heap_watch.h"
#include "tests/crypto/hex.h"
#include "tests/crypto/tls_pair.h"
#include "transport/crypto/tls_session.h"
#include "transport/crypto/tls_settings.h"

namespace longhaul::crypto {
namespace {

// By OpenSSL's own name.
std::map<std::string, std::vector<uint8_t>>& Secrets() {
  static std::map<std::string, std::vector<uint8_t>> secrets;
  return secrets;
}
void Note(const SSL*, const char* line) {
  const std::string text = line;
  Secrets()[text.substr(0, text.find(' '))] = Hex(text.substr(text.rfind(' ') + 1));
}

std::shared_ptr<const TlsSettings> Settings(const Side& side) {
  auto made = MakeTlsSettings(ParseKeyFile(side.file).value(), side.options);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  SSL_CTX_set_keylog_callback((*made)->client.get(), Note);
  return *made;
}

// Leaks of `secret` from the handshake to the end of both sessions.
uint64_t Leaks(const std::string& secret, bool certificates, bool wiped) {
  const std::string ca = Text(NewCa("ca", kThisDay)), psk = Text(NewPsk("job-a"));
  const auto key = [&](Role role) {
    return certificates ? Text(IssueCertificate(ca, "job-a", role, "name", kThisDay)) : psk;
  };
  const auto client_settings = Settings(Side(key(Role::kWorker), Role::kWorker));
  const auto server_settings = Settings(Side(key(Role::kServer), Role::kServer));
  auto client = std::make_unique<TlsSession>(client_settings, true);
  auto server = std::make_unique<TlsSession>(server_settings, false);
  Exchange(*client, *server);
  EXPECT_TRUE(client->complete() && server->complete());
  const auto client_keys = client->MakeProtection({}), server_keys = server->MakeProtection({});
  const HeapWatch watch(Secrets().at(secret), wiped);
  client.reset();
  server.reset();
  return watch.leaks();
}

TEST(ReleasedSession, LeavesNoSecretOfTheKeyScheduleInAProgram) {
  ASSERT_TRUE(HeapWatch::SeesOpenSsl());
  for (const bool certificates : {false, true}) {
    for (const char* secret : {"EXPORTER_SECRET", "CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"}) {
      EXPECT_EQ(Leaks(secret, certificates, true), 0u) << secret << " " << certificates;
    }
  }
  // An OpenSSL that wipes by itself makes the above true without us; the blocks below are ours to wipe in
  // any.
  RecordProperty("left_by_openssl", static_cast<int>(Leaks("EXPORTER_SECRET", false, false)));
}

// Of whatever size, and the end of it too.
TEST(ReleasedSession, WhatOpenSslGivesBackIsWiped) {
  ASSERT_TRUE(HeapWatch::SeesOpenSsl());
  const std::vector<uint8_t> secret = Hex("00112233445566778899aabbccddeeff");
  for (const size_t size : {16, 17, 100, 1000, 100'000}) {
    for (const bool wiped : {false, true}) {
      for (const size_t at : {size_t{0}, size - secret.size()}) {
        const HeapWatch watch(secret, wiped);
        auto* block = static_cast<uint8_t*>(OPENSSL_malloc(size));
        std::copy(secret.begin(), secret.end(), block + at);
        OPENSSL_free(block);
        EXPECT_EQ(watch.leaks(), wiped ? 0u : 1u) << size << " at " << at;
      }
    }
  }
}

}  // namespace
}  // namespace longhaul::crypto
