#include "tests/attack/support/certified_test.h"

#include <ctime>

#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"

namespace longhaul::attack {

namespace {

// An hour back, as `longhaul keygen` does.
crypto::Validity From(int64_t now, int64_t lifetime) { return {now - 3600, now + lifetime}; }

void Write(const crypto::SecretBytes& ca, crypto::Role role, const std::string& name, const std::string& path,
           int64_t lifetime) {
  const auto text =
      crypto::IssueCertificate(ca.text(), "default", role, name, From(::time(nullptr), lifetime));
  EXPECT_TRUE(text.ok() && keys::WriteKeyFile(path, text->text()).ok()) << name;
}

}  // namespace

void CertifiedTest::SetUp() {
  AttackTest::SetUp();
  auto ours = crypto::NewCa("authority", From(::time(nullptr), 86'400));
  const auto other = crypto::NewCa("authority", From(::time(nullptr), 86'400));
  ASSERT_TRUE(ours.ok() && other.ok());
  authority_.emplace(*std::move(ours));
  Issue(crypto::Role::kServer, "server");
  Issue(crypto::Role::kTool, "tool");
  for (const char* name : {"worker0", "worker1", "intruder"}) Issue(crypto::Role::kWorker, name);
  Write(*other, crypto::Role::kWorker, "stranger", KeyOf("stranger"), 86'400);
  Write(*other, crypto::Role::kServer, "impostor", KeyOf("impostor"), 86'400);
}

void CertifiedTest::Issue(crypto::Role role, const std::string& name, int64_t lifetime) {
  Write(*authority_, role, name, KeyOf(name), lifetime);
}

}  // namespace longhaul::attack
