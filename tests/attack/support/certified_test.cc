#include "tests/attack/support/certified_test.h"

#include <ctime>

#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"

namespace longhaul::attack {

void CertifiedTest::SetUp() {
  AttackTest::SetUp();
  const int64_t now = ::time(nullptr);
  const crypto::Validity day{now - 3600, now + 86400};
  const auto ours = crypto::NewCa("authority", day);
  const auto other = crypto::NewCa("authority", day);
  ASSERT_TRUE(ours.ok() && other.ok());
  const auto issue = [&](const auto& ca, crypto::Role role, const std::string& name) {
    const auto text = crypto::IssueCertificate(ca->text(), "default", role, name, day);
    EXPECT_TRUE(text.ok() && keys::WriteKeyFile(KeyOf(name), text->text()).ok()) << name;
  };
  issue(ours, crypto::Role::kServer, "server");
  issue(ours, crypto::Role::kTool, "tool");
  for (const char* name : {"worker0", "worker1", "intruder"}) issue(ours, crypto::Role::kWorker, name);
  issue(other, crypto::Role::kWorker, "stranger");
}

}  // namespace longhaul::attack
