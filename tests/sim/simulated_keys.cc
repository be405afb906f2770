#include "tests/sim/simulated_keys.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <map>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "transport/crypto/credentials.h"
#include "transport/crypto/keygen.h"
#include "transport/crypto/replayed_chance.h"
#include "transport/crypto/tls_security.h"

namespace longhaul::sim {
namespace {

// 2026-01-01, and certificates are valid for a day around it.
constexpr int64_t kToday = 1'767'225'600;
constexpr crypto::Validity kThisDay = {kToday - 43'200, kToday + 43'200};

Random& Chance() {
  static Random chance(1);
  return chance;
}

// The same for each session of one ClientHello.
int DrawAgain(unsigned char* bytes, int count) {
  const auto size = static_cast<size_t>(count);
  OSSL_LIB_CTX* library = crypto::replayed_chance::Library();
  for (EVP_RAND_CTX* generator : {RAND_get0_public(library), RAND_get0_private(library)}) {
    if (EVP_RAND_generate(generator, bytes, size, 0, 0, nullptr, 0) == 1) return 1;
  }
  return 0;
}

int Draw(unsigned char* bytes, int count) {
  if (crypto::replayed_chance::Replaying()) return DrawAgain(bytes, count);
  for (int i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(Chance().Next() >> 32);
  return 1;
}

int IsSeeded() { return 1; }

// The interface is deprecated for programs; a provider of its own would be a hundred lines more.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
void InstallChance() {
  static const RAND_METHOD kMethod = {nullptr, Draw, nullptr, nullptr, Draw, IsSeeded};
  LH_CHECK(RAND_set_rand_method(&kMethod) == 1);
}
#pragma GCC diagnostic pop

std::string Text(const Result<crypto::SecretBytes>& file) {
  LH_CHECK_OP(file.status().ToString(), ==, Status().ToString());
  return std::string((*file).text());
}

// The key files of one job, made when they are asked for, by a chance of their own.
class JobKeys {
 public:
  explicit JobKeys(uint32_t job) : job_("job" + std::to_string(job)), chance_(Random(77).Fork(job)) {}

  const std::string& SharedKey() {
    return Made("key", [&] { return crypto::NewPsk(job_); });
  }
  const std::string& Certificate(crypto::Role role, const std::string& name) {
    const std::string ca = Made("ca", [&] { return crypto::NewCa("ca", kThisDay); });
    return Made(name, [&] { return crypto::IssueCertificate(ca, job_, role, name, kThisDay); });
  }

 private:
  template <typename Make>
  const std::string& Made(const std::string& name, const Make& make) {
    const auto known = files_.find(name);
    if (known != files_.end()) return known->second;
    std::swap(Chance(), chance_);  // a run's own draws do not depend on whether a file is there already
    const std::string file = Text(make());
    std::swap(Chance(), chance_);
    return files_[name] = file;
  }

  std::string job_;
  Random chance_;
  std::map<std::string, std::string> files_;
};

JobKeys& KeysOf(uint32_t job) {
  static std::map<uint32_t, JobKeys> keys;
  return keys.try_emplace(job, job).first->second;
}

std::unique_ptr<transport::Security> Make(const std::string& file, crypto::Role role,
                                          const std::string& name) {
  Result<crypto::Credentials> credentials = crypto::ParseKeyFile(file);
  LH_CHECK(credentials.ok());
  crypto::TlsOptions options;
  options.role = role;
  options.server_name = role == crypto::Role::kServer ? name : "";
  options.wall_clock = [] { return kToday; };
  auto made = crypto::TlsSecurity::Create(std::move(credentials).value(), std::move(options));
  LH_CHECK_OP(made.status().ToString(), ==, Status().ToString());
  return std::move(made).value();
}

std::unique_ptr<transport::Security> SecurityOf(Protection protection, uint32_t job, crypto::Role role,
                                                const std::string& name) {
  if (protection == Protection::kTag) return nullptr;
  JobKeys& keys = KeysOf(job);
  const bool shared = protection == Protection::kSharedKey;
  return Make(shared ? keys.SharedKey() : keys.Certificate(role, name), role, name);
}

// What OpenSSL draws when it is used for the first time is drawn here, and not in the first run.
void WarmUp() {
  const auto client = SecurityOf(Protection::kCertificates, 0, crypto::Role::kWorker, "worker0");
  const auto server = SecurityOf(Protection::kCertificates, 0, crypto::Role::kServer, "server");
  const auto a = client->NewSession(true);
  const auto b = server->NewSession(false);
  LH_CHECK(b->HandleData(a->TakeData()).ok());
  LH_CHECK(a->HandleData(b->TakeData()).ok());
}

}  // namespace

void SeedOpenSsl(uint64_t seed) {
  static const bool installed = [] {
    InstallChance();
    WarmUp();
    return true;
  }();
  (void)installed;
  Chance() = Random(seed);
}

std::unique_ptr<transport::Security> ServerSecurity(Protection protection, uint32_t job) {
  return SecurityOf(protection, job, crypto::Role::kServer, "server");
}

std::unique_ptr<transport::Security> WorkerSecurity(Protection protection, uint32_t job, uint32_t rank) {
  return SecurityOf(protection, job, crypto::Role::kWorker, "worker" + std::to_string(rank));
}

}  // namespace longhaul::sim
