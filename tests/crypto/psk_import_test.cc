// What is made of a pre-shared key, against vectors that psk_import.py computes from the RFCs alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/crypto/hex.h"
#include "tests/crypto/tls_pair.h"
#include "transport/crypto/imported_psk.h"

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

TEST(PskImport, TheIdentityTravelsAndTheRawKeyDoesNot) {
  const std::string file = Text(NewPsk("job-a"));
  auto client = Side(file, Role::kWorker).Make()->NewSession(true);
  const std::vector<uint8_t> hello = client->TakeData();
  const Result<Credentials> parsed = ParseKeyFile(file);
  const ImportedPsk imported = ImportPsk(std::get<PskKey>(parsed.value()), Hash::kSha256);
  EXPECT_NE(std::search(hello.begin(), hello.end(), imported.identity.begin(), imported.identity.end()),
            hello.end());
}

}  // namespace
}  // namespace longhaul::crypto
