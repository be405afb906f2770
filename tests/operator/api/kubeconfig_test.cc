// Which API server, and by which proof: kubeconfig files, service accounts; what is not supported says what
// to do.
#include "operator/api/kubeconfig.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/operator/api/temporary_folder.h"

namespace longhaul::kube::api {
namespace {

constexpr char kWhole[] = R"(apiVersion: v1
kind: Config
current-context: here
contexts:
- name: other
  context: {cluster: far, user: none}
- name: here
  context: {cluster: near, user: ann, namespace: team}
clusters:
- name: far
  cluster: {server: "https://10.0.0.2:6443"}
- name: near
  cluster:
    server: https://10.0.0.1:6443
    certificate-authority-data: Q0EgYnl0ZXM=
users:
- name: none
  user: {}
- name: ann
  user:
    client-certificate-data: Y2VydA==
    client-key-data: a2V5
    token: secret
)";

// A kubeconfig with these lines in its cluster and its user.
std::string With(const std::string& cluster, const std::string& user) {
  return "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\nclusters:\n- name: k\n  "
         "cluster:\n"
         "    server: https://10.0.0.1:6443\n" +
         (cluster.empty() ? "" : "    " + cluster + "\n") + "users:\n- name: u\n  user:\n    unused: x\n" +
         (user.empty() ? "" : "    " + user + "\n");
}
std::string Refusal(const std::string& text, const std::string& context = "") {
  const auto parsed = ParseKubeconfig(text, context);
  if (parsed.ok()) return "taken";
  EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
  return parsed.status().message();
}
::testing::AssertionResult Says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << text << "\" does not say \"" << part << "\"";
}

TEST(Kubeconfig, TheCurrentContextNamesClusterUserAndNamespace) {
  const auto entry = ParseKubeconfig(kWhole);
  ASSERT_TRUE(entry.ok()) << entry.status().message();
  EXPECT_EQ(entry->access.server, "https://10.0.0.1:6443");
  EXPECT_EQ(entry->access.ca, "CA bytes");
  EXPECT_EQ(entry->access.client_certificate, "cert");
  EXPECT_EQ(entry->access.client_key, "key");
  EXPECT_EQ(entry->access.token, "secret");
  EXPECT_EQ(entry->access.name_space, "team");
}

TEST(Kubeconfig, AnotherContextMayBeNamed) {
  const auto entry = ParseKubeconfig(kWhole, "other");
  ASSERT_TRUE(entry.ok());
  EXPECT_EQ(entry->access.server, "https://10.0.0.2:6443");
  EXPECT_EQ(entry->access.token, "");
  EXPECT_EQ(entry->access.name_space, "default");
}

TEST(Kubeconfig, WhatIsMissingIsNamed) {
  EXPECT_TRUE(Says(Refusal(kWhole, "none"), "there is no context \"none\""));
  EXPECT_TRUE(Says(Refusal("contexts: []"), "no current-context"));
  EXPECT_TRUE(Says(Refusal("current-context: c\ncontexts: [{name: c, context: {cluster: k}}]"),
                   "there is no cluster \"k\""));
  EXPECT_TRUE(Says(Refusal("current-context: c\ncontexts: [{name: c, context: {cluster: k, user: "
                           "u}}]\nclusters: [{name: k, cluster: "
                           "{server: https://a}}]"),
                   "there is no user \"u\""));
}

TEST(Kubeconfig, WhatIsNotSupportedSaysWhatToDoInstead) {
  EXPECT_TRUE(Says(Refusal(With("", "exec: {command: aws}")),
                   "exec is not supported: make a token of a service account"));
  EXPECT_TRUE(Says(Refusal(With("", "auth-provider: {name: gcp}")), "auth-provider is not supported"));
  EXPECT_TRUE(Says(Refusal(With("", "username: ann")), "username is not supported"));
  EXPECT_TRUE(Says(Refusal(With("", "password: x")), "password is not supported"));
  EXPECT_TRUE(Says(Refusal(With("", "as: root")), "as is not supported"));
  EXPECT_TRUE(Says(Refusal(With("proxy-url: http://p", "")), "proxy-url is not supported"));
  EXPECT_TRUE(Says(Refusal(With("tls-server-name: x", "")), "tls-server-name is not supported"));
  EXPECT_TRUE(
      Says(Refusal(With("insecure-skip-tls-verify: true", "")), "insecure-skip-tls-verify is not supported"));
  EXPECT_TRUE(
      Says(Refusal(With("insecure-skip-tls-verify: yes", "")), "insecure-skip-tls-verify is not supported"));
  EXPECT_EQ(Refusal(With("insecure-skip-tls-verify: false", "")), "taken");
  EXPECT_TRUE(Says(Refusal(With("certificate-authority-data: '!!'", "")),
                   "certificate-authority-data is not base64"));
}

TEST(Kubeconfig, WhatIsNoKubeconfigIsRefusedInPrintableWords) {
  for (const char* text :
       {"", "7", "- a", "{", "a: *b", "\x01\x02", "contexts: 5", "current-context: {a: b}",
        "current-context: c\ncontexts: {c: d}", "current-context: c\ncontexts: [{name: c, context: [x]}]"}) {
    const std::string why = Refusal(text);
    EXPECT_NE(why, "taken") << text;
    for (const char c : why) EXPECT_TRUE(c >= ' ' && c <= '~') << text;
  }
  EXPECT_TRUE(Says(Refusal(std::string(kMaxKubeconfigBytes + 1, ' ')), "larger than"));
}

TEST(Kubeconfig, FilesAreRelativeToItsFolder) {
  const TemporaryFolder folder;
  folder.Write("ca.crt", "the CA");
  folder.Write("a.crt", "the certificate");
  folder.Write("a.key", "the key");
  folder.Write("token", "the token\n");
  const std::string path =
      folder.Write("config", With("certificate-authority: ca.crt",
                                  "client-certificate: a.crt\n    client-key: a.key\n    tokenFile: token"));
  const auto access = LoadKubeconfig(path);
  ASSERT_TRUE(access.ok()) << access.status().message();
  EXPECT_EQ(access->ca, "the CA");
  EXPECT_EQ(access->client_certificate, "the certificate");
  EXPECT_EQ(access->client_key, "the key");
  EXPECT_EQ(access->token_file, folder.path() + "/token");
}

TEST(Kubeconfig, AMissingFileIsNamed) {
  const TemporaryFolder folder;
  const auto none = LoadKubeconfig(folder.path() + "/config");
  EXPECT_EQ(none.status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(Says(none.status().message(), folder.path() + "/config"));
  const auto no_ca =
      LoadKubeconfig(folder.Write("config", With("certificate-authority: ca.crt", "token: x")));
  EXPECT_EQ(no_ca.status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(Says(no_ca.status().message(), folder.path() + "/ca.crt"));
}

TEST(Kubeconfig, AnAccessNeedsTlsButForLoopbackAndWholePairs) {
  const auto refusal = [](ClusterAccess access) { return CheckAccess(access).message(); };
  ClusterAccess access;
  for (const char* server :
       {"https://10.0.0.1:6443", "http://127.0.0.1:8001", "http://localhost:8001", "http://[::1]:80"}) {
    access.server = server;
    EXPECT_EQ(refusal(access), "") << server;
  }
  for (const char* server : {"http://10.0.0.1:8080", "http://localhost.evil.org", "http://127.evil",
                             "ftp://a", "", "https://", "https://a@b", "https://a?b"}) {
    access.server = server;
    EXPECT_NE(refusal(access), "") << server;
  }
  access.server = "https://a";
  access.client_key = "key";
  EXPECT_TRUE(Says(refusal(access), "go together"));
  access.client_key.clear();
  access.token = "a\nb";
  EXPECT_TRUE(Says(refusal(access), "more than one line"));
}

TEST(InCluster, ReadsTheServiceAccountOfAPod) {
  const TemporaryFolder folder;
  folder.Write("ca.crt", "the CA");
  folder.Write("token", "the token");
  folder.Write("namespace", "longhaul\n");
  const auto access = InCluster(folder.path(), "10.96.0.1", "443");
  ASSERT_TRUE(access.ok()) << access.status().message();
  EXPECT_EQ(access->server, "https://10.96.0.1:443");
  EXPECT_EQ(access->ca, "the CA");
  EXPECT_EQ(access->token_file, folder.path() + "/token");
  EXPECT_EQ(access->name_space, "longhaul");
  EXPECT_EQ(InCluster(folder.path(), "fd00::1", "443")->server, "https://[fd00::1]:443");
}

TEST(InCluster, OutsideOfAPodItSaysSo) {
  const TemporaryFolder folder;
  EXPECT_EQ(InCluster(folder.path(), "", "").status().code(), StatusCode::kFailedPrecondition);
  folder.Write("ca.crt", "the CA");
  EXPECT_TRUE(
      Says(InCluster(folder.path(), "10.96.0.1", "443").status().message(), "automountServiceAccountToken"));
}

TEST(Token, IsReadAgainAfterAMinuteOrWhenItIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("token", "one\n");
  Token token("", path, std::chrono::minutes(1));
  const Token::Time begin{std::chrono::hours(1)};
  EXPECT_EQ(*token.Get(begin), "one");
  folder.Write("token", "two\n");
  EXPECT_EQ(*token.Get(begin + std::chrono::seconds(59)), "one");
  EXPECT_EQ(*token.Get(begin + std::chrono::seconds(60)), "two");
  folder.Write("token", "three");
  token.Expire();
  EXPECT_EQ(*token.Get(begin + std::chrono::seconds(61)), "three");
  folder.Write("token", "");
  token.Expire();
  EXPECT_EQ(*token.Get(begin + std::chrono::seconds(62)), "three") << "half-written: the one that is known";
  EXPECT_EQ(token.reads(), 4u);
}

TEST(Token, WithoutAFileItIsWhatItIs) {
  Token fixed("fixed", "", std::chrono::minutes(1));
  EXPECT_EQ(*fixed.Get({}), "fixed");
  EXPECT_FALSE(fixed.IsRenewable());
  Token missing("", "/nonexistent/token", std::chrono::minutes(1));
  EXPECT_EQ(missing.Get({}).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace longhaul::kube::api
