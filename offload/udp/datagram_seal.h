// Seals the packets between engines of different machines and opens them, without clock, sockets and chance.
//
//   word 0 of the packet 32 | magic 16, version 4, kind 4, cipher 4, source 4 | start 64 | salt 64 | number 64
//   the rest of the packet, encrypted | tag 128
//
// All big-endian; what is in clear is authenticated. Start and salt name a process of the source: `start`
// grows from one to the next, and a newer one counts once a datagram of it authenticates. Keys:
//
//   root of the job's key (PskRoot) -- "offload" --> secret
//     -- "key", "iv": kind, cipher, source, target, process of the source, process of the target, epoch -->
//   one direction of two processes, for 2^25 datagrams (epoch = number / 2^25)
//
// A hello's packet is word 0, all zero, and 64 bits that all nodes have alike (SealOptions::site). It is
// sealed for every process of the target, so a recording of it opens as well: it tells where to aim, and is
// no proof that its sender lives. Data is for one process of the target: what was recorded before that one
// started does not open. Data waits for a hello.
//
// When not: packets that must stay secret when the job's key becomes known later; there is no key exchange.
#pragma once

#include <array>
#include <compare>
#include <memory>
#include <optional>

#include "base/instant.h"
#include "base/token_bucket.h"
#include "longhaul/offload.h"
#include "offload/engine/collective.h"
#include "offload/engine/wire.h"
#include "offload/udp/replay_window.h"
#include "offload/udp/udp_counters.h"
#include "transport/crypto/aead.h"
#include "transport/crypto/secret_bytes.h"

namespace longhaul::offload {

inline constexpr int kEpochBits = 25;

struct SealOptions {
  crypto::SecretBytes root;
  crypto::AeadSuite cipher =
      crypto::AeadSuite::kAes128Gcm;  // of what is sealed; the others seal as they like
  uint8_t node = 0;
  uint64_t nodes = 1;  // bit per node, this one included
  uint64_t start = 1;  // of this process: more than that of any earlier one of the node; ns since 1970
  uint64_t salt = 0;   // chance, so that two starts at one time are two
  uint64_t site = 0;   // of the settings that all nodes have alike; hellos tell it
  int epoch_bits = kEpochBits;  // the same for all; tests have fewer
};

class DatagramSeal {
 public:
  // What a datagram has more than its packet.
  static constexpr size_t kHeadBytes = 28;
  static constexpr size_t kSealBytes = kHeadBytes + crypto::kAeadTagBytes;
  static constexpr size_t kHelloBytes = 4 + 8 + kSealBytes;

  // The counters outlive it. REQUIRES: start > 0.
  DatagramSeal(SealOptions options, UdpCounters* counters);

  // Writes the datagram; its bytes. 0: the target's process is not known yet, and a hello is due.
  // REQUIRES: packet.size() >= 4, out.size() >= packet.size() + kSealBytes.
  size_t Seal(uint8_t target, ByteSpan packet, MutableByteSpan out);

  struct Opened {
    uint8_t source = 0;
    ByteSpan packet;                    // in the datagram's place; empty: there was none in it
    bool restarted = false;             // the source is another process than before
    std::optional<uint64_t> site = {};  // a hello's: the source's SealOptions::site
  };
  // Nothing: it is refused, and counted. The datagram's bytes are garbage then.
  std::optional<Opened> Open(Instant now, MutableByteSpan datagram);

  // A hello that is due, written to `out` (at least kHelloBytes); its bytes. 0: none.
  size_t NextHello(Instant now, uint8_t* target, MutableByteSpan out);

 private:
  enum class Kind : uint8_t { kData = 0, kHello = 1, kAnswer = 2 };
  struct Process {
    uint64_t start = 0;  // 0: none
    uint64_t salt = 0;
    friend auto operator<=>(const Process&, const Process&) = default;
  };
  struct Head {
    Kind kind = Kind::kData;
    crypto::AeadSuite cipher = crypto::AeadSuite::kAes128Gcm;
    uint8_t source = 0;
    Process process;
    uint64_t number = 0;
  };
  struct Key {
    std::unique_ptr<crypto::Aead> aead;
    crypto::SecretBytes iv;
    crypto::AeadSuite cipher = crypto::AeadSuite::kAes128Gcm;
    uint64_t epoch = 0;
    uint64_t failures = 0;
  };
  struct Peer {
    Process process;        // the newest that has authenticated
    Key present, previous;  // of its data
    ReplayWindow window;
    TokenBucket derivations{kDerivationsPerSecond, kDerivationsAtOnce};
    Key sending;
    uint64_t number = 0;        // of the next datagram to it
    uint64_t hello_number = 0;  // of the next hello
    TokenBucket hellos{kHellosPerSecond, kHellosAtOnce};
    std::optional<Kind> due = Kind::kHello;  // a hello or an answer
  };
  // A key costs some 10 us: forgers take a thousandth of a core for each node that they speak for.
  static constexpr double kDerivationsPerSecond = 100;
  static constexpr double kDerivationsAtOnce = 10;
  // An engine repeats what is not acknowledged every few ms.
  static constexpr double kHellosPerSecond = 200;
  static constexpr double kHellosAtOnce = 10;

  uint64_t EpochOf(const Head& head) const { return head.number >> options_.epoch_bits; }
  bool Fits(const Key& key, const Head& head) const {
    return key.aead != nullptr && key.cipher == head.cipher && key.epoch == EpochOf(head);
  }
  static std::optional<Head> ReadHead(ByteSpan datagram);
  size_t Write(const Head& head, const Key& key, ByteSpan packet, MutableByteSpan out) const;
  static bool Decrypt(Key& key, const Head& head, MutableByteSpan datagram);
  std::optional<Opened> OpenData(Instant now, const Head& head, MutableByteSpan datagram);
  std::optional<Opened> OpenHello(Instant now, const Head& head, MutableByteSpan datagram);
  bool MayDerive(Instant now, Peer& peer);
  Key Derive(const Head& head, uint8_t target, const Process& of_target, crypto::Aead::Use use) const;
  // True: it is another process than before.
  static bool Meet(const Process& process, Peer& peer);
  bool IsPeer(uint8_t node) const { return node != options_.node && (options_.nodes & BitOf(node)) != 0; }
  Process self() const { return {options_.start, options_.salt}; }

  SealOptions options_;
  UdpCounters* counters_;
  crypto::SecretBytes secret_;
  std::array<Peer, kMaxNodes> peers_;
};

}  // namespace longhaul::offload
