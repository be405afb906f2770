// A job under attack: a real server, two clients whose every result is known in advance, and a status that is
// asked for before and after.
//
//   client 0 ── Wiretap ──┐
//                         ├── longhaul-server ── the attacker
//   client 1 ─────────────┘
//
// A test says what its attack would have gained: a sum that is not what the two gave (Round), a member more,
// a packet that was believed (Change), memory (Memory), bytes for a third party (ExpectNoAmplifier).
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "longhaul/client.h"
#include "tests/attack/support/forger.h"
#include "tests/attack/support/spoofing_socket.h"
#include "tests/attack/support/status_probe.h"
#include "tests/attack/support/wiretap.h"
#include "tests/e2e/support/job.h"

namespace longhaul::attack {

using e2e::kPatience;
using e2e::kSlowness;
using e2e::milliseconds;
using e2e::Program;
using e2e::seconds;

// A server may remember what a stranger sent in tables of fixed size; more is growth.
// Under a sanitizer freed memory waits in a quarantine of 256 MB.
inline constexpr int64_t kFlatBytes = (kSlowness > 1 ? 300 : 8) << 20;

class AttackTest : public e2e::JobTest {
 protected:
  // Of a client, and of who asks for the status; the server's is in security().
  virtual std::string client_key(uint32_t rank) const { return (void)rank, key_file(); }
  virtual std::string tool_key() const { return key_file(); }

  // A server that takes two workers, nothing of whose gradients may be lost.
  void StartTarget(const e2e::Flags& more = {});
  // Both clients are in; the first comes through the tap, with the rule from its first packet on. Also after
  // FinishPair, for another job.
  void StartPair(Wiretap::Rule rule = {});
  // One round of both: every element of the result must be what the two gave, to the bit.
  void Round();
  // The client behind the tap alone pushes and waits for a result.
  Status PushAlone();
  // Both leave; every contribution was counted once.
  void FinishPair();

  Wiretap& tap() { return *tap_; }
  // The server's answer to the question how it is; a test fails without one.
  nlohmann::json AskServer();
  // By how much an endpoint's counter has grown since `before`; a test fails when there is no such counter.
  static int64_t Change(const nlohmann::json& before, const nlohmann::json& after,
                        const std::string& counter);
  // Of everything that is counted as dropped, refused or limited, at the endpoint and with the members.
  static int64_t Dropped(const nlohmann::json& status);
  // Resident memory of the server.
  int64_t Memory();
  static void ExpectNoAmplifier(const SpoofingSocket& socket);
  std::vector<std::optional<Client>>& clients() { return clients_; }

 private:
  std::unique_ptr<Wiretap> tap_;
  std::vector<std::optional<Client>> clients_;
  std::vector<Tensor> tensors_;
  int rounds_ = 0;  // of the pair
  int given_ = 0;   // rounds of all pairs, so that no two have the same values
};

}  // namespace longhaul::attack
