// A job under attack (attack_test.h) whose members have certificates of one authority: a server, a tool, two
// workers.
//
// Unlike with a shared key, any host can make INITs that open: the key of long packets is public then, and
// what keeps strangers out is TLS. A stranger here has an authority of its own.
#pragma once

#include <optional>
#include <string>

#include "tests/attack/support/attack_test.h"
#include "transport/crypto/certificate.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::attack {

class CertifiedTest : public AttackTest {
 protected:
  void SetUp() override;

  // "server", "tool", "worker0", "worker1", "intruder" (a worker that has no rank yet); and "stranger", a
  // worker of another authority, and "impostor", a server of that one.
  std::string KeyOf(const std::string& name) const { return directory() + "/" + name + ".pem"; }

  // One more, at KeyOf(name), of our authority; it expires after so many seconds.
  void Issue(crypto::Role role, const std::string& name, int64_t lifetime = 86'400);

  e2e::Flags security() const override { return {{"--key", KeyOf("server")}}; }
  std::string client_key(uint32_t rank) const override { return KeyOf("worker" + std::to_string(rank)); }
  std::string tool_key() const override { return KeyOf("tool"); }

 private:
  std::optional<crypto::SecretBytes> authority_;
};

}  // namespace longhaul::attack
