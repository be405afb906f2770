// What is made of a pre-shared key, against vectors that psk_import.py computes from the RFCs alone.
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "tests/crypto/hex.h"
#include "tests/crypto/tls_pair.h"
#include "transport/crypto/imported_psk.h"
#include "transport/crypto/tls_settings.h"

namespace longhaul::crypto {
namespace {

TEST(PskImport, GivesTheKeysOfRfc9258) {
  std::ifstream file(VECTORS);
  std::string line;
  int vectors = 0;
  for (; std::getline(file, line); ++vectors) {
    std::string kind, job, psk, identity, secret;
    std::istringstream(line) >> kind >> job >> psk >> identity >> secret;
    SCOPED_TRACE(kind + " " + job);
    const PskKey key{job, SecretBytes(ByteSpan(Hex(psk)))};
    if (kind == "root") {
      EXPECT_EQ(PskRoot(key), SecretBytes(ByteSpan(Hex(secret))));
      continue;
    }
    const ImportedPsk imported = ImportPsk(key, kind == "sha256" ? Hash::kSha256 : Hash::kSha384);
    EXPECT_EQ(imported.identity, Hex(identity));
    EXPECT_EQ(imported.key, SecretBytes(ByteSpan(Hex(secret))));
  }
  EXPECT_EQ(vectors, 9);
}

// A key belongs to one hash: what is known of one tells nothing of the other.
TEST(PskImport, EveryHashHasAKeyOfItsOwn) {
  const PskKey key{"job", SecretBytes(ByteSpan(std::vector<uint8_t>(kPskBytes, 7)))};
  const ImportedPsk a = ImportPsk(key, Hash::kSha256), b = ImportPsk(key, Hash::kSha384);
  EXPECT_NE(a.identity, b.identity);
  EXPECT_FALSE(a.key == SecretBytes(b.key.span().first(32)));
  EXPECT_FALSE(a.key == key.psk);
}

std::vector<uint8_t> Digest(Hash hash, ByteSpan of) {
  std::vector<uint8_t> out(HashBytes(hash));
  EXPECT_EQ(EVP_Q_digest(nullptr, hash == Hash::kSha256 ? "SHA256" : "SHA384", nullptr, of.data(), of.size(),
                         out.data(), nullptr),
            1);
  return out;
}

bool Holds(ByteSpan where, ByteSpan what) {
  return std::search(where.begin(), where.end(), what.begin(), what.end()) != where.end();
}

// What proves in a ClientHello that the client has this key (RFC 8446 §4.2.11.2).
SecretBytes BinderOf(Hash hash, ByteSpan key, ByteSpan hello_before_binders) {
  const SecretBytes early = HkdfExtract(hash, {}, key);
  const SecretBytes binder =
      HkdfExpandLabel(hash, early.span(), "ext binder", Digest(hash, {}), HashBytes(hash), kTlsLabels);
  const SecretBytes finished =
      HkdfExpandLabel(hash, binder.span(), "finished", {}, HashBytes(hash), kTlsLabels);
  return HkdfExtract(hash, finished.span(), Digest(hash, hello_before_binders));  // HMAC
}

// A record's header is 5 bytes; its one binder is the hello's end, behind the lengths 16 | 8 of the list.
TEST(PskImport, TlsIsGivenTheImportedKeyAndNeverTheRawOne) {
  for (const AeadSuite suite : {AeadSuite::kAes128Gcm, AeadSuite::kAes256Gcm}) {
    const Hash hash = AeadHash(suite);
    const std::string file = Text(NewPsk("job-a"));
    Side side(file, Role::kWorker);
    side.options.suites = {suite};
    const auto client = side.Make()->NewSession(true);
    const std::vector<uint8_t> hello = client->TakeData();
    const Result<Credentials> parsed = ParseKeyFile(file);
    const PskKey& raw = std::get<PskKey>(parsed.value());
    const ImportedPsk imported = ImportPsk(raw, hash);
    EXPECT_TRUE(Holds(hello, imported.identity));
    ASSERT_GT(hello.size(), HashBytes(hash) + 8);
    const ByteSpan before = ByteSpan(hello).subspan(5, hello.size() - 5 - 3 - HashBytes(hash));
    const SecretBytes sent(ByteSpan(hello).last(HashBytes(hash)));
    EXPECT_EQ(sent, BinderOf(hash, imported.key.span(), before));
    EXPECT_FALSE(sent == BinderOf(hash, raw.psk.span(), before));
  }
}

TEST(PskImport, TheRawKeyDoesNotTravelAndIsNotKept) {
  const std::string file = Text(NewPsk("job-a"));
  const Result<Credentials> parsed = ParseKeyFile(file);
  const SecretBytes& raw = std::get<PskKey>(parsed.value()).psk;
  const auto settings = MakeTlsSettings(ParseKeyFile(file).value(), Side(file, Role::kServer).options);
  ASSERT_TRUE(settings.ok());
  EXPECT_TRUE((*settings)->psk()->psk.empty());
  TlsPair pair(Side(file, Role::kWorker), Side(file, Role::kServer));
  std::vector<uint8_t> travelled;
  for (transport::HandshakeCrypto *from = pair.client.get(), *to = pair.server.get();;) {
    const std::vector<uint8_t> data = from->TakeData();
    if (data.empty()) break;
    travelled.insert(travelled.end(), data.begin(), data.end());
    ASSERT_TRUE(to->HandleData(data).ok());
    std::swap(from, to);
  }
  ASSERT_TRUE(pair.client->complete() && pair.server->complete());
  EXPECT_TRUE(Holds(travelled, ImportPsk(std::get<PskKey>(parsed.value()), Hash::kSha256).identity));
  EXPECT_FALSE(Holds(travelled, raw.span()));
}

}  // namespace
}  // namespace longhaul::crypto
