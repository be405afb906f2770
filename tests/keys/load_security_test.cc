#include "transport/keys/load_security.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <ctime>

#include "key_directory.h"
#include "transport/crypto/keygen.h"
#include "transport/keys/key_file.h"

namespace longhaul::keys {
namespace {

using crypto::Role;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class LoadSecurityTest : public KeyDirectory {
 protected:
  void SetUp() override {
    KeyDirectory::SetUp();
    const auto psk = crypto::NewPsk("apples");
    ASSERT_TRUE(psk.ok() && WriteKeyFile(Path("psk"), psk->text()).ok());
    const int64_t now = ::time(nullptr);
    const crypto::Validity validity{now - 10, now + 1000};
    const auto authority = crypto::NewCa("test", validity);
    ASSERT_TRUE(authority.ok());
    const auto issue = [&](const char* file, Role role) {
      const auto text = crypto::IssueCertificate(authority->text(), "apples", role, file, validity);
      ASSERT_TRUE(text.ok()) << text.status().ToString();
      ASSERT_TRUE(WriteKeyFile(Path(file), text->text()).ok());
    };
    issue("server", Role::kServer);
    issue("worker", Role::kWorker);
  }

  Status Refusal(const SecurityChoice& choice) {
    const auto loaded = LoadSecurity(choice);
    EXPECT_FALSE(loaded.ok());
    return loaded.ok() ? Status() : loaded.status();
  }
};

TEST_F(LoadSecurityTest, ASharedKeyBringsItsJob) {
  const auto loaded = LoadSecurity({.key_file = Path("psk")});
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->job, "apples");
  EXPECT_EQ(loaded->description, "shared key of job apples");
  EXPECT_EQ(loaded->kind, "tls-psk");
  ASSERT_NE(loaded->security, nullptr);
  EXPECT_TRUE(loaded->security->IsSecure());
}

TEST_F(LoadSecurityTest, ACertificateSaysWhoItIs) {
  const auto loaded = LoadSecurity({.key_file = Path("server"), .role = Role::kServer, .allow = {"fra"}});
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->description, "certificate server/server of job apples");
}

TEST_F(LoadSecurityTest, NothingIsSecureUnlessAskedFor) {
  EXPECT_THAT(Refusal({}).message(), AllOf(HasSubstr("keygen"), HasSubstr("'insecure'")));
  const auto none = LoadSecurity({.insecure = true});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->security, nullptr);
  EXPECT_EQ(none->kind, "insecure");
  EXPECT_EQ(none->job, "default");
  EXPECT_EQ(LoadSecurity({.insecure = true, .job = "pears"})->job, "pears");
}

TEST_F(LoadSecurityTest, WhatDoesNotGoTogetherIsRefused) {
  EXPECT_EQ(Refusal({.key_file = Path("psk"), .insecure = true}).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Refusal({.insecure = true, .cipher = Cipher::kAes128Gcm}).message(), HasSubstr("'cipher'"));
  EXPECT_THAT(Refusal({.insecure = true, .allow = {"a"}}).message(), HasSubstr("'allow'"));
  EXPECT_THAT(Refusal({.key_file = Path("psk"), .allow = {"a"}}).message(), HasSubstr("'allow'"));
  const Status job = Refusal({.key_file = Path("psk"), .job = "pears"});
  EXPECT_THAT(job.message(), AllOf(HasSubstr("apples"), HasSubstr("pears"), HasSubstr(Path("psk"))));
  EXPECT_THAT(Refusal({.key_file = Path("server")}).message(), HasSubstr("server"));
  EXPECT_THAT(Refusal({.key_file = Path("worker"), .role = Role::kServer}).message(), HasSubstr("worker"));
}

TEST_F(LoadSecurityTest, TheAllowListHasNamesThatCertificatesCanHave) {
  const auto with = [&](std::vector<std::string> allow) {
    return SecurityChoice{.key_file = Path("server"), .role = Role::kServer, .allow = std::move(allow)};
  };
  const auto loaded = LoadSecurity(with({" fra", "nyc\t ", "a.b_c-9"}));
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_THAT(loaded->allow, ElementsAre("fra", "nyc", "a.b_c-9"));
  EXPECT_EQ(loaded->kind, "tls-certificates");
  for (const char* empty : {"", " ", "\t"})
    EXPECT_THAT(Refusal(with({"fra", empty})).message(), HasSubstr("empty"));
  EXPECT_THAT(Refusal(with({"fra", "nyc", " fra "})).message(),
              AllOf(HasSubstr("\"fra\""), HasSubstr("twice")));
  for (const char* name : {"worker/fra", "fra*", "f ra", "longhaul://a/worker/b", "fra\n", "\xc3\xa9"}) {
    const Status refused = Refusal(with({name}));
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(refused.message(), AllOf(HasSubstr("'allow'"), HasSubstr("A-Z a-z 0-9"))) << name;
  }
  EXPECT_THAT(Refusal(with({"a\x1b[31mred"})).message(),
              AllOf(HasSubstr("\"a?[31mred\""), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(Refusal(with({std::string(65, 'x')})).message(), HasSubstr("1 to 64"));
}

TEST_F(LoadSecurityTest, TheServersNameReachesItsResetTokens) {
  const auto token = [&](const std::string& name) {
    const auto loaded = LoadSecurity({.key_file = Path("psk"), .role = Role::kServer, .server_name = name});
    return loaded.ok() ? loaded->security->ResetToken({7}) : std::array<uint8_t, 16>{};
  };
  EXPECT_NE(token("here"), (std::array<uint8_t, 16>{}));
  EXPECT_EQ(token("here"), token("here"));
  EXPECT_NE(token("here"), token("there"));
}

TEST_F(LoadSecurityTest, EveryCipherCanBeAskedFor) {
  for (const Cipher cipher : {Cipher::kAes128Gcm, Cipher::kAes256Gcm, Cipher::kChaCha20Poly1305}) {
    EXPECT_TRUE(LoadSecurity({.key_file = Path("psk"), .cipher = cipher}).ok()) << NameOf(cipher);
  }
}

TEST_F(LoadSecurityTest, ABadFileIsNamedButNeverQuoted) {
  ASSERT_TRUE(WriteKeyFile(Path("bad"), "longhaul-psk-v1\njob = a\npsk = secretsecret\n").ok());
  const Status bad = Refusal({.key_file = Path("bad")});
  EXPECT_THAT(bad.message(), AllOf(HasSubstr(Path("bad")), Not(HasSubstr("secretsecret"))));
  EXPECT_EQ(bad.message(), "key file " + Path("bad") + ": psk is not 64 hexadecimal digits");
  ASSERT_EQ(::chmod(Path("psk").c_str(), 0644), 0);
  EXPECT_EQ(Refusal({.key_file = Path("psk")}).code(), StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace longhaul::keys
