// Key files: what is read, and what is said about the others.
#include "transport/crypto/credentials.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "tests/crypto/heap_watch.h"
#include "tests/crypto/tls_pair.h"
#include "transport/crypto/certificate.h"

namespace longhaul::crypto {
namespace {

constexpr std::string_view kZeros = "0000000000000000000000000000000000000000000000000000000000000000";

std::string Psk(std::string_view rest) { return "longhaul-psk-v1\n" + std::string(rest); }
std::string Problem(std::string_view text) {
  const Result<Credentials> parsed = ParseKeyFile(text);
  if (parsed.ok()) return "none";
  EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
  return parsed.status().message();
}

TEST(CredentialsTest, ANewPskIsReadBack) {
  const std::string file = Text(NewPsk("mnist.v2"));
  const Result<Credentials> parsed = ParseKeyFile(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  const PskKey& key = std::get<PskKey>(*parsed);
  EXPECT_EQ(key.job, "mnist.v2");
  EXPECT_EQ(key.psk.size(), kPskBytes);
  EXPECT_EQ(PrintPskKey(key).text(), file);
  EXPECT_NE(Text(NewPsk("mnist.v2")), file) << "every key is new";
}

TEST(CredentialsTest, CommentsBlankLinesAndCarriageReturnsMeanNothing) {
  EXPECT_EQ(Problem("# our key\n\nlonghaul-psk-v1\r\n psk=" + std::string(kZeros) + " \r\n# x\n\tjob =a\n"),
            "none");
}

TEST(CredentialsTest, WrongPskFilesAreRefusedByName) {
  const std::string zeros(kZeros);
  EXPECT_EQ(Problem(""), "empty");
  EXPECT_EQ(Problem("hello"), "neither longhaul-psk-v1 nor PEM");
  EXPECT_EQ(Problem("longhaul-psk-v2\n"), "neither longhaul-psk-v1 nor PEM");
  EXPECT_EQ(Problem(Psk("job = a\n")), "job or psk is missing");
  EXPECT_EQ(Problem(Psk("psk = " + zeros)), "job or psk is missing");
  EXPECT_EQ(Problem(Psk("job = a\npsk = " + zeros.substr(1))), "psk is not 64 hexadecimal digits");
  EXPECT_EQ(Problem(Psk("job = a\npsk = " + zeros + "0")), "psk is not 64 hexadecimal digits");
  EXPECT_EQ(Problem(Psk("job = a\npsk = g" + zeros.substr(1))), "psk is not 64 hexadecimal digits");
  EXPECT_EQ(Problem(Psk("job = a\njob = b\n")), "a line is neither job nor psk, or comes twice");
  EXPECT_EQ(Problem(Psk("color = red\n")), "a line is neither job nor psk, or comes twice");
  EXPECT_EQ(Problem(Psk("job\n")), "a line is not NAME = VALUE");
  EXPECT_NE(Problem(Psk("job = a/b\npsk = " + zeros)).find("characters"), std::string::npos);
  EXPECT_EQ(Problem(std::string(kMaxKeyFileBytes + 1, '#')), "larger than 64 KiB");
}

TEST(CredentialsTest, AnIssuedCertificateIsReadBack) {
  const std::string ca = Text(NewCa("ca", kThisDay));
  const Result<Credentials> parsed =
      ParseKeyFile(Text(IssueCertificate(ca, "job-a", Role::kWorker, "site-1.rank-3", kThisDay)));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  const CertificateKey& key = std::get<CertificateKey>(*parsed);
  EXPECT_EQ(key.identity, (transport::PeerIdentity{transport::PeerIdentity::Kind::kCertificate, "job-a",
                                                   "worker", "site-1.rank-3"}));
  EXPECT_EQ(key.chain.size(), 1u);
  EXPECT_EQ(key.authorities.size(), 1u);
}

TEST(CredentialsTest, WrongBundlesAreRefusedByName) {
  const std::string ca = Text(NewCa("ca", kThisDay)), other_ca = Text(NewCa("other", kThisDay));
  const std::string good = Text(IssueCertificate(ca, "job-a", Role::kWorker, "w", kThisDay));
  const std::string other = Text(IssueCertificate(ca, "job-a", Role::kWorker, "w", kThisDay));
  const size_t first = good.find("-----BEGIN CERTIFICATE"),
               second = good.find("-----BEGIN CERTIFICATE", first + 1);
  const std::string private_key = good.substr(0, first), certificate = good.substr(first, second - first),
                    authority = good.substr(second);
  EXPECT_EQ(Problem(good), "none");
  EXPECT_EQ(Problem(certificate + private_key + authority), "none");
  EXPECT_EQ(Problem(ca), "a CA's own file: it issues certificates, daemons get those");
  EXPECT_EQ(Problem(private_key), "no certificate");
  EXPECT_EQ(Problem(certificate + authority), "no private key that can be read (encrypted ones cannot)");
  EXPECT_EQ(Problem(private_key + certificate), "no CA certificate");
  EXPECT_EQ(Problem(other.substr(0, other.find("-----BEGIN CERTIFICATE")) + certificate + authority),
            "the first certificate is not the private key's");
  std::string damaged = good;
  damaged[second + 100] = '*';
  EXPECT_EQ(Problem(damaged), "a certificate is damaged");
  std::string many = good;
  for (size_t i = 0; i < kMaxCertificates; ++i) many += authority;
  EXPECT_EQ(Problem(many), "more than 16 certificates");
}

TEST(CredentialsTest, EncryptedPrivateKeysAreRefusedWithoutAskingForAPassword) {
  EXPECT_EQ(Problem("-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
                    "MIGbMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAi0Wn5Xg5ZcvgICCAAw\n"
                    "-----END ENCRYPTED PRIVATE KEY-----\n"),
            "no private key that can be read (encrypted ones cannot)");
}

TEST(CredentialsTest, TruncatedAndFlippedFilesEndInAStatus) {
  constexpr uint64_t kSeed = 9;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  const std::string ca = Text(NewCa("ca", kThisDay));
  const std::string bundle = Text(IssueCertificate(ca, "job-a", Role::kWorker, "w", kThisDay));
  const std::string psk = Text(NewPsk("job-a"));
  for (const std::string& file : {psk, bundle}) {
    for (size_t size = 0; size < file.size(); size += file == psk ? 1 : 11) {
      // The last line's end may be missing.
      EXPECT_NE(ParseKeyFile(file.substr(0, size)).ok(), size + 1 < file.size()) << size;
    }
    for (int round = 0; round < 300; ++round) {
      std::string damaged = file;
      for (uint64_t flips = 1 + random.Below(4); flips > 0; --flips) {
        damaged[random.Below(damaged.size())] = static_cast<char>(random.Below(256));
      }
      (void)ParseKeyFile(damaged);
    }
  }
}

TEST(CredentialsTest, ThePskIsWipedAlsoAsText) {
  ASSERT_TRUE(HeapWatch::SeesOpenSsl());
  const std::string file = Text(NewPsk("a"));
  const Result<Credentials> parsed = ParseKeyFile(file);
  ASSERT_TRUE(parsed.ok());
  const std::string hex = file.substr(file.find("psk = ") + 6, 64);
  const HeapWatch watch(ByteSpan(reinterpret_cast<const uint8_t*>(hex.data()), hex.size()));
  (void)PrintPskKey(std::get<PskKey>(*parsed));
  (void)ParseKeyFile(file);
  EXPECT_EQ(watch.leaks(), 0u);
}

TEST(KeygenTest, WrongNamesAndTimesAreRefused) {
  const std::string ca = Text(NewCa("ca", kThisDay));
  for (std::string_view bad : {"", "a b", "a/b", "a,b", "ä", "a:b"}) {
    EXPECT_EQ(NewPsk(bad).status().code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_EQ(NewCa(bad, kThisDay).status().code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_FALSE(IssueCertificate(ca, bad, Role::kWorker, "w", kThisDay).ok()) << bad;
    EXPECT_FALSE(IssueCertificate(ca, "job", Role::kWorker, bad, kThisDay).ok()) << bad;
  }
  EXPECT_FALSE(NewPsk(std::string(65, 'a')).ok());
  EXPECT_FALSE(NewCa("ca", {kToday, kToday - 1}).ok());
  EXPECT_FALSE(IssueCertificate("nonsense", "job", Role::kWorker, "w", kThisDay).ok());
  EXPECT_FALSE(CaValidity("nonsense").ok());
  ASSERT_TRUE(CaValidity(ca).ok());
  EXPECT_EQ(CaValidity(ca)->not_before, kThisDay.not_before);
  EXPECT_EQ(CaValidity(ca)->not_after, kThisDay.not_after);
  const std::string leaf = Text(IssueCertificate(ca, "job", Role::kWorker, "w", kThisDay));
  EXPECT_EQ(IssueCertificate(leaf, "job", Role::kServer, "s", kThisDay).status().message(),
            "CA file: the certificate is no CA's, or not the private key's");
}

TEST(IdentityNameTest, OnlyExactUrisAreIdentities) {
  const auto parsed = ParseIdentityUri(IdentityUri("job-a", Role::kWorker, "w.1"));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->job + "|" + parsed->role + "|" + parsed->name, "job-a|worker|w.1");
  for (std::string_view wrong :
       {"", "longhaul://", "longhaul://a", "longhaul://a/worker", "longhaul://a/worker/",
        "longhaul://a/boss/b", "longhaul:///worker/b", "longhaul://a/worker/b/c", "longhaul://a//b",
        "http://a/worker/b", "longhaul://a/worker/b ", "LONGHAUL://a/worker/b", "longhaul://a/Worker/b",
        "xlonghaul://a/worker/b"}) {
    EXPECT_FALSE(ParseIdentityUri(wrong)) << wrong;
  }
  EXPECT_FALSE(ParseIdentityUri(std::string_view("longhaul://a/worker/b\0c", 23)));
}

}  // namespace
}  // namespace longhaul::crypto
