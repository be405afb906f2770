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
  ASSERT_NE(loaded->security(), nullptr);
  EXPECT_TRUE(loaded->security()->IsSecure());
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
  EXPECT_EQ(none->security(), nullptr);
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

TEST_F(LoadSecurityTest, ASecondSharedKeyIsValidBesideTheFirst) {
  const auto next = crypto::NewPsk("apples"), other = crypto::NewPsk("pears");
  ASSERT_TRUE(next.ok() && WriteKeyFile(Path("next"), next->text()).ok());
  ASSERT_TRUE(other.ok() && WriteKeyFile(Path("other"), other->text()).ok());
  const auto with = [&](const char* key, const char* second) {
    return SecurityChoice{.key_file = Path(key), .role = Role::kServer, .next_key_file = Path(second)};
  };
  const auto both = LoadSecurity(with("psk", "next"));
  ASSERT_TRUE(both.ok()) << both.status().ToString();
  ASSERT_EQ(both->keys.size(), 2u);
  ASSERT_EQ(both->trusts.size(), 2u);
  EXPECT_NE(both->trusts[0], both->trusts[1]);
  EXPECT_EQ(LoadSecurity({.key_file = Path("next")})->trusts.at(0), both->trusts[1]);
  EXPECT_TRUE(LoadSecurity(with("psk", "psk")).ok()) << "nothing to move to is no mistake";
  EXPECT_EQ(Refusal(with("psk", "missing")).code(), StatusCode::kNotFound);
  EXPECT_EQ(Refusal(with("psk", "other")).message(),
            "key file " + Path("other") + ": the next key is of job pears, not of apples");
  EXPECT_THAT(Refusal(with("psk", "server")).message(),
              AllOf(HasSubstr(Path("server")), HasSubstr("'next_key_file'")));
  EXPECT_THAT(Refusal(with("server", "psk")).message(), HasSubstr("'next_key_file'"));
  EXPECT_THAT(Refusal({.insecure = true, .next_key_file = Path("psk")}).message(),
              HasSubstr("'next_key_file'"));
}

TEST_F(LoadSecurityTest, OnlyCertificatesNameAServer) {
  EXPECT_TRUE(LoadSecurity({.key_file = Path("worker"), .expected_server = "server"}).ok());
  for (const SecurityChoice& choice : {SecurityChoice{.key_file = Path("psk"), .expected_server = "ams"},
                                       SecurityChoice{.insecure = true, .expected_server = "ams"}})
    EXPECT_THAT(Refusal(choice).message(), HasSubstr("'server_name' needs certificates"));
}

TEST_F(LoadSecurityTest, TheAllowListHasNamesThatCertificatesCanHave) {
  const auto with = [&](std::vector<std::string> allow) {
    return SecurityChoice{.key_file = Path("server"), .role = Role::kServer, .allow = std::move(allow)};
  };
  const auto loaded = LoadSecurity(with({" fra", "nyc\t ", "a.b_c-9", "tool/ops"}));
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->allow.ToString(), "worker/fra, worker/nyc, worker/a.b_c-9, tool/ops");
  EXPECT_EQ(loaded->kind, "tls-certificates");
  EXPECT_GT(loaded->expires, ::time(nullptr));
  EXPECT_THAT(Refusal(with({"fra", "nyc", " fra "})).message(),
              AllOf(HasSubstr("'allow'"), HasSubstr("twice")));
}

TEST_F(LoadSecurityTest, TheServersNameReachesItsResetTokens) {
  const auto token = [&](const std::string& name) {
    const auto loaded = LoadSecurity({.key_file = Path("psk"), .role = Role::kServer, .server_name = name});
    return loaded.ok() ? loaded->security()->ResetToken({7}) : std::array<uint8_t, 16>{};
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
