// Security without cryptography, for tests: flights of any size whose every byte is checked, packets that
// open only for who has the secret, key phases, cookies, reset tokens. Deterministic, fast, and worth nothing
// outside of tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "base/random.h"
#include "transport/core/security/security.h"

namespace longhaul::transport {

// splitmix64's finaliser over a running value.
inline uint64_t Mix(uint64_t a, uint64_t b = 0) {
  uint64_t h = a * 0x9e3779b97f4a7c15ull + b + 0x632be59bd9b4e019ull;
  h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ h >> 27) * 0x94d049bb133111ebull;
  return h ^ h >> 31;
}

// Seals under a 64-bit key: the body is masked, the tag depends on everything.
class FakeCipher {
 public:
  explicit FakeCipher(uint64_t key, bool bodies = true) : key_(key), bodies_(bodies) {}
  void Seal(wire::PacketNumber number, ByteSpan header, MutableByteSpan body, MutableByteSpan tag) const {
    const auto made = Tag(number, header, body);
    std::copy(made.begin(), made.end(), tag.begin());
    Mask(body, number);
  }
  bool Open(wire::PacketNumber number, ByteSpan header, MutableByteSpan body, ByteSpan tag) const {
    Mask(body, number);
    const auto made = Tag(number, header, body);
    if (std::equal(made.begin(), made.end(), tag.begin(), tag.end())) return true;
    Mask(body, number);  // a real one may leave garbage; this one may try the next key
    return false;
  }

 private:
  std::array<uint8_t, wire::kTagBytes> Tag(wire::PacketNumber number, ByteSpan header, ByteSpan body) const {
    const uint32_t head = Crc32c(header, static_cast<uint32_t>(key_));
    const uint64_t both = uint64_t{bodies_ ? Crc32c(body, head) : head} << 32 | head;
    std::array<uint8_t, wire::kTagBytes> tag{};
    ByteWriter out(tag);
    out.U64(Mix(key_, both ^ body.size()));
    out.U64(Mix(key_ + 1, number ^ both));
    return tag;
  }
  void Mask(MutableByteSpan body, wire::PacketNumber number) const {
    if (!bodies_) return;
    const auto mask = static_cast<uint8_t>(Mix(key_, number) | 1);
    for (uint8_t& byte : body) byte ^= mask;
  }

  uint64_t key_;
  bool bodies_;
};

class FakeProtection final : public PacketProtection {
 public:
  // How much a key may do: packets sealed with one, packets that did not open with any.
  struct Limits {
    uint64_t sealed = UINT64_MAX;
    uint64_t forged = UINT64_MAX;
  };
  FakeProtection(uint64_t secret, bool is_client, bool bodies, Limits limits)
      : secret_(secret), is_client_(is_client), bodies_(bodies), limits_(limits) {}
  FakeProtection(uint64_t secret, bool is_client, bool bodies = true)
      : FakeProtection(secret, is_client, bodies, Limits()) {}

  void Seal(wire::PacketNumber number, uint8_t, ByteSpan header, MutableByteSpan body,
            MutableByteSpan tag) override {
    ++sealed_;
    Cipher(is_client_, sending_).Seal(number, header, body, tag);
  }
  bool Open(wire::PacketNumber number, uint8_t, ByteSpan header, MutableByteSpan body,
            ByteSpan tag) override {
    const bool same = (header[0] & 1) == (receiving_ & 1);
    const bool next = !same && number > largest_ && agreed_ > receiving_;
    if (forged_ >= limits_.forged) return false;
    if (!same && !next && (number > largest_ || !previous_)) return false;
    const uint64_t generation = same ? receiving_ : next ? receiving_ + 1 : receiving_ - 1;
    if (!Cipher(!is_client_, generation).Open(number, header, body, tag)) {
      ++forged_;
      return false;
    }
    if (next) {
      ++receiving_;
      previous_ = true;
      largest_ = 0;
      if (receiving_ > sending_) UpdateKeys();
    }
    if (same || next) largest_ = std::max(largest_, number);
    return true;
  }
  bool IsSecure() const override { return true; }
  bool key_phase() const override { return (sending_ & 1) != 0; }
  // Keys depend on the phase alone; shares are checked.
  KeyShare Offer() override { return ShareOf(is_client_); }
  std::optional<KeyShare> Answer(const KeyShare& offer) override {
    if (!Conclude(offer)) return std::nullopt;
    return ShareOf(is_client_);
  }
  bool Conclude(const KeyShare& answer) override {
    if (answer != ShareOf(!is_client_)) return false;
    agreed_ = sending_ + 1;
    return true;
  }
  void DropPrevious() override {
    previous_ = false;
    ++drops;
  }
  void UpdateKeys() override {
    ++sending_;
    sealed_ = 0;
  }
  std::string_view limit_reached() const override {
    return forged_ >= limits_.forged ? "forged" : sealed_ >= limits_.sealed ? "sealed" : "";
  }
  uint64_t peer_updates() const override { return receiving_; }

  uint64_t drops = 0;  // of previous keys

 private:
  // For the phase after the present one.
  KeyShare ShareOf(bool client) const {
    KeyShare share{};
    for (size_t i = 0; i < share.size(); ++i) {
      share[i] = static_cast<uint8_t>(Mix(Mix(secret_, sending_ + 1), 2 * i + (client ? 1 : 0)));
    }
    return share;
  }
  FakeCipher Cipher(bool client, uint64_t generation) const {
    return FakeCipher(Mix(Mix(secret_, client ? 1 : 2), generation), bodies_);
  }

  uint64_t secret_;
  bool is_client_;
  bool bodies_;
  Limits limits_;
  uint64_t sealed_ = 0;
  uint64_t forged_ = 0;
  uint64_t sending_ = 0;
  uint64_t receiving_ = 0;
  uint64_t agreed_ = 0;  // the latest phase that both have shares for
  bool previous_ = false;
  wire::PacketNumber largest_ = 0;
};

class FakeSecurity final : public Security {
 public:
  struct Options {
    uint64_t key = 1;           // of the cluster; both sides need the same
    bool psk = true;            // long packets are sealed by it; else by a public constant
    size_t client_first = 300;  // bytes of the flights, at least 8
    size_t server_flight = 800;
    size_t client_last = 100;
    bool cookies = true;
    bool bodies = true;  // off: packets' bodies are neither masked nor in the tag, which is faster
    std::string refuse_clients = {};  // server: why it trusts no client
    bool impostor = false;            // server: no client trusts it
    FakeProtection::Limits limits = {};
  };

  explicit FakeSecurity(const Options& options, uint64_t seed = 1)
      : options_(options), random_(seed), long_(options.psk ? options.key : 0, options.bodies, options.psk) {}

  std::unique_ptr<HandshakeCrypto> NewSession(bool is_client) override {
    ++sessions;
    return std::make_unique<Session>(this, is_client);
  }
  PacketProtection& long_protection() override { return long_; }
  std::optional<Cookie> MakeCookie(Instant now, const Address& from, wire::ConnectionId client) override {
    if (!options_.cookies) return std::nullopt;
    return CookieOf(Epoch(now), from, client);
  }
  bool CheckCookie(Instant now, const Address& from, wire::ConnectionId client, ByteSpan cookie) override {
    for (const uint64_t epoch : {Epoch(now), Epoch(now) - 1}) {
      const Cookie made = CookieOf(epoch, from, client);
      if (std::equal(made.begin(), made.end(), cookie.begin(), cookie.end())) return true;
    }
    return false;
  }
  std::array<uint8_t, 16> ResetToken(wire::ConnectionId local) override {
    std::array<uint8_t, 16> token{};
    ByteWriter out(token);
    out.U64(Mix(options_.key, local.value));
    out.U64(Mix(options_.key + 7, local.value));
    return token;
  }
  uint64_t Unpredictable(uint64_t seeded) override { return seeded; }
  bool IsSecure() const override { return true; }

  uint64_t sessions = 0;  // made so far: what an attacker can make a server do
  int sessions_alive = 0;
  uint64_t handshake_bytes = 0;  // that reached the sessions
  uint64_t long_opens() const { return long_.opens; }
  uint64_t last_secret = 0;  // of the latest protection, so that a test can seal as an insider

 private:
  // Long packets: one key for both directions; the header tells the packets apart.
  class LongProtection final : public PacketProtection {
   public:
    LongProtection(uint64_t key, bool bodies, bool secret) : cipher_(Mix(key, 99), bodies), secret_(secret) {}
    void Seal(wire::PacketNumber number, uint8_t, ByteSpan header, MutableByteSpan body,
              MutableByteSpan tag) override {
      cipher_.Seal(number, header, body, tag);
    }
    bool Open(wire::PacketNumber number, uint8_t, ByteSpan header, MutableByteSpan body,
              ByteSpan tag) override {
      ++opens;
      return cipher_.Open(number, header, body, tag);
    }
    bool IsSecure() const override { return secret_; }

    uint64_t opens = 0;  // tried

   private:
    FakeCipher cipher_;
    bool secret_;
  };

  // Flight: 8 random bytes (the last one: none), then bytes that follow from key and all random bytes so far.
  class Session final : public HandshakeCrypto {
   public:
    Session(FakeSecurity* owner, bool is_client) : owner_(owner), is_client_(is_client) {
      ++owner_->sessions_alive;
      secret_ = Mix(owner->options_.key, 4711);
      if (is_client_) Say(owner->options_.client_first, true);
      first_ = to_send_;
      expected_ = is_client_ ? owner->options_.server_flight : owner->options_.client_first;
      identity_.kind = PeerIdentity::Kind::kPsk;
      identity_.job = "job";
    }
    Session(const Session& other) = default;
    ~Session() override { --owner_->sessions_alive; }
    Status HandleData(ByteSpan bytes) override {
      owner_->handshake_bytes += bytes.size();
      for (const uint8_t byte : bytes) {
        if (Status status = Take(byte); !status.ok()) return status;
      }
      return Status::Ok();
    }
    std::vector<uint8_t> TakeData() override { return std::exchange(to_send_, {}); }
    bool complete() const override { return complete_; }
    std::unique_ptr<HandshakeCrypto> Again() const override {
      if (owner_->options_.psk || !is_client_ || taken_ > 0) return nullptr;
      auto again = std::make_unique<Session>(*this);
      again->to_send_ = first_;
      ++owner_->sessions;
      ++owner_->sessions_alive;
      return again;
    }
    const PeerIdentity& peer() const override { return identity_; }
    std::unique_ptr<PacketProtection> MakeProtection(ByteSpan context) override {
      uint64_t secret = Mix(secret_, Crc32c(context));
      owner_->last_secret = secret;
      return std::make_unique<FakeProtection>(secret, is_client_, owner_->options_.bodies,
                                              owner_->options_.limits);
    }

   private:
    void Say(size_t bytes, bool random) {
      size_t i = 0;
      for (; random && i < 8; ++i) {
        to_send_.push_back(static_cast<uint8_t>(owner_->random_.Next()));
        secret_ = Mix(secret_, to_send_.back());
      }
      for (; i < bytes; ++i) to_send_.push_back(Pattern(i));
    }
    uint8_t Pattern(size_t i) const { return static_cast<uint8_t>((secret_ >> i % 8 * 7) + i); }
    Status Take(uint8_t byte) {
      if (complete_ || taken_ == expected_) {
        return Status(StatusCode::kProtocolViolation, "more than the handshake has");
      }
      const bool finished = !is_client_ && flights_ == 1;
      if (taken_ < 8 && !finished) {
        secret_ = Mix(secret_, byte);
      } else if (byte != Pattern(taken_)) {
        return Status(StatusCode::kPermissionDenied, "another key");
      }
      if (++taken_ == expected_) return FlightDone();
      return Status::Ok();
    }
    Status FlightDone() {
      ++flights_;
      if (is_client_) {
        Say(owner_->options_.client_last, false);
        complete_ = true;
      } else if (flights_ == 1) {
        if (owner_->options_.impostor) secret_ = Mix(secret_, 7);
        Say(owner_->options_.server_flight, true);
        expected_ = owner_->options_.client_last;
        taken_ = 0;
      } else if (!owner_->options_.refuse_clients.empty()) {
        return Status(StatusCode::kPermissionDenied, owner_->options_.refuse_clients);
      } else {
        complete_ = true;
      }
      return Status::Ok();
    }

    FakeSecurity* owner_;
    bool is_client_;
    uint64_t secret_;
    std::vector<uint8_t> to_send_;
    std::vector<uint8_t> first_;
    size_t expected_ = 0;
    size_t taken_ = 0;
    int flights_ = 0;
    bool complete_ = false;
    PeerIdentity identity_;
  };

  static uint64_t Epoch(Instant now) { return static_cast<uint64_t>(now.nanoseconds() / 30'000'000'000) + 1; }
  Cookie CookieOf(uint64_t epoch, const Address& from, wire::ConnectionId client) const {
    Cookie cookie{};
    ByteWriter out(cookie);
    const uint64_t h = Mix(Mix(Mix(options_.key, std::hash<Address>()(from)), client.value), epoch);
    out.U64(h);
    out.U64(Mix(h, 1));
    return cookie;
  }

  Options options_;
  Random random_;
  LongProtection long_;
};

}  // namespace longhaul::transport
