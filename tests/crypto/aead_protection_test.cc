// Packets of one connection under keys that change while packets are on their way.
//
//   client ── phase 0: 1 2 3 ── exchange, UpdateKeys ── phase 1: 4 5 ──> server: follows with 4, still reads a late 3
#include "transport/crypto/aead_protection.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/crypto/heap_watch.h"

namespace longhaul::crypto {
namespace {

struct Packet {
  wire::PacketNumber number = 0;
  std::vector<uint8_t> header, body;
  std::vector<uint8_t> tag = std::vector<uint8_t>(wire::kTagBytes);
};

class AeadProtectionTest : public testing::TestWithParam<AeadSuite> {
 protected:
  static SecretBytes Secret(uint8_t fill) {
    return SecretBytes(ByteSpan(std::vector<uint8_t>(HashBytes(AeadHash(GetParam())), fill)));
  }
  static Packet Sealed(AeadProtection& by, wire::PacketNumber number, size_t body_bytes = 64) {
    Packet packet{
        .number = number, .header = std::vector<uint8_t>(wire::kShortHeaderBytes, 0x20), .body = {}};
    packet.body.resize(body_bytes);
    for (size_t i = 0; i < body_bytes; ++i) packet.body[i] = static_cast<uint8_t>(number + i);
    packet.header[0] = by.key_phase() ? 1 : 0;
    by.Seal(number, 0, packet.header, packet.body, packet.tag);
    return packet;
  }
  // On a copy, so that a packet can be tried again.
  static bool Opens(AeadProtection& by, Packet packet) {
    if (!by.Open(packet.number, 0, packet.header, packet.body, packet.tag)) return false;
    for (size_t i = 0; i < packet.body.size(); ++i) {
      if (packet.body[i] != static_cast<uint8_t>(packet.number + i)) return false;
    }
    return true;
  }

  // Whether a packet was sealed under this secret of its direction.
  static bool OpensUnder(const SecretBytes& secret, wire::PacketNumber number, const Packet& packet) {
    const Hash hash = AeadHash(GetParam());
    const SecretBytes key = HkdfExpandLabel(hash, secret.span(), "key", {}, AeadKeyBytes(GetParam()));
    const SecretBytes iv = HkdfExpandLabel(hash, secret.span(), "iv", {}, 12);
    AeadNonce nonce{};
    std::copy(iv.span().begin(), iv.span().end(), nonce.begin());
    for (size_t i = 0; i < 6; ++i) nonce[11 - i] ^= static_cast<uint8_t>(number >> (8 * i));
    std::vector<uint8_t> body = packet.body;
    return MakeEvpAead(GetParam(), Aead::Use::kOpen, key.span())
        ->Open(nonce, packet.header, body, packet.tag);
  }
  static SecretBytes X25519(const PrivateKey& ours, const transport::KeyShare& theirs) {
    const PrivateKey peer(
        EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, theirs.data(), theirs.size()));
    EVP_PKEY_CTX* context = EVP_PKEY_CTX_new(ours.get(), nullptr);
    SecretBytes secret(32);
    size_t size = secret.size();
    EXPECT_EQ(EVP_PKEY_derive_init(context), 1);
    EXPECT_EQ(EVP_PKEY_derive_set_peer(context, peer.get()), 1);
    EXPECT_EQ(EVP_PKEY_derive(context, secret.span().data(), &size), 1);
    EVP_PKEY_CTX_free(context);
    return secret;
  }
  // `by` goes on with the next keys, which it agrees on with `with`.
  static void Update(AeadProtection& by, AeadProtection& with) {
    const auto answer = with.Answer(by.Offer());
    ASSERT_TRUE(answer);
    ASSERT_TRUE(by.Conclude(*answer));
    by.UpdateKeys();
  }

  // The peer of a connection as the headers promise it: it answers every exchange and knows all secrets.
  class Peer {
   public:
    // The exchange for the next phase: what it gives is known before `of` derives it.
    void Prepare(AeadProtection& of) {
      const Hash hash = AeadHash(GetParam());
      const PrivateKey ours(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519"));
      size_t size = answer_.size();
      ASSERT_EQ(EVP_PKEY_get_raw_public_key(ours.get(), answer_.data(), &size), 1);
      const transport::KeyShare offer = of.Offer();
      shared = X25519(ours, offer);
      std::vector<uint8_t> context = {0, 0, 0, 0, 0, 0, 0, static_cast<uint8_t>(++phase_)};
      context.insert(context.end(), offer.begin(), offer.end());
      context.insert(context.end(), answer_.begin(), answer_.end());
      for (SecretBytes* secret : {&sending, &receiving}) {
        const SecretBytes mixed = HkdfExtract(hash, secret->span(), shared.span());
        *secret = HkdfExpandLabel(hash, mixed.span(), "update", context, HashBytes(hash));
      }
    }
    // `of` goes over to the phase, and hears that the peer follows, else the next exchange could not begin.
    void Enter(AeadProtection& of) {
      ASSERT_TRUE(of.Conclude(answer_));
      of.UpdateKeys();
      AeadProtection by(GetParam(), receiving, sending);
      Packet follows{
          .number = ++packets_, .header = std::vector<uint8_t>(wire::kShortHeaderBytes, 0x20), .body = {}};
      follows.header[0] = phase_ % 2 == 1 ? 1 : 0;
      by.Seal(follows.number, 0, follows.header, follows.body, follows.tag);
      ASSERT_TRUE(Opens(of, follows));
    }

    // Of the phase, as seen from the other side, and of its exchange.
    SecretBytes sending = Secret(1), receiving = Secret(2), shared;

   private:
    uint64_t phase_ = 0;
    transport::KeyShare answer_{};
    wire::PacketNumber packets_ = 0;
  };

  AeadProtection client_{GetParam(), Secret(1), Secret(2)};
  AeadProtection server_{GetParam(), Secret(2), Secret(1)};
};

TEST_P(AeadProtectionTest, PacketsTravelBothWaysAndAreUnreadableOnTheirWay) {
  const Packet packet = Sealed(client_, 1, 1408);
  EXPECT_NE(packet.body[0], 1);
  EXPECT_TRUE(Opens(server_, packet));
  EXPECT_TRUE(Opens(client_, Sealed(server_, 1, 1408)));
  EXPECT_FALSE(Opens(client_, Sealed(client_, 2))) << "a reflected packet has the other direction's keys";
  EXPECT_TRUE(client_.IsSecure());
}

TEST_P(AeadProtectionTest, EveryFlippedBitIsRefusedAndCounted) {
  Packet packet = Sealed(client_, 5, 100);
  uint64_t flips = 0;
  for (std::vector<uint8_t>* part : {&packet.header, &packet.body, &packet.tag}) {
    for (size_t bit = 0; bit < part->size() * 8; ++bit) {
      const auto mask = static_cast<uint8_t>(1u << (bit % 8));
      (*part)[bit / 8] ^= mask;
      ASSERT_FALSE(Opens(server_, packet)) << bit;
      (*part)[bit / 8] ^= mask;
      ++flips;
    }
  }
  EXPECT_TRUE(Opens(server_, packet));
  EXPECT_EQ(server_.forged_packets(), flips - 1) << "with the phase bit flipped no key was tried";
  EXPECT_EQ(server_.peer_updates(), 0u) << "a flipped phase bit is no key update";
}

TEST_P(AeadProtectionTest, AnotherNumberOrPathIsRefused) {
  Packet packet = Sealed(client_, 5);
  for (unsigned bit = 0; bit < 48; ++bit) {
    Packet other = packet;
    other.number ^= uint64_t{1} << bit;
    ASSERT_FALSE(Opens(server_, other)) << bit;
  }
  for (int path = 1; path < 256; ++path) {
    Packet other = packet;
    ASSERT_FALSE(server_.Open(5, static_cast<uint8_t>(path), other.header, other.body, other.tag)) << path;
  }
  Packet garbled = packet;  // opening what does not open leaves garbage
  EXPECT_FALSE(server_.Open(uint64_t{1} << 48 | 5, 0, garbled.header, garbled.body, garbled.tag));
  EXPECT_FALSE(server_.Open(5, 0, {}, garbled.body, garbled.tag));
  EXPECT_FALSE(server_.Open(5, 0, garbled.header, garbled.body, ByteSpan(garbled.tag).first(15)));
  EXPECT_TRUE(Opens(server_, packet));
}

// The same number on two paths must not be the same nonce: equal plaintexts would give equal ciphertexts.
TEST_P(AeadProtectionTest, NumbersOfDifferentPathsDoNotMeet) {
  std::vector<std::vector<uint8_t>> seen;
  for (uint8_t path : {uint8_t{0}, uint8_t{1}, uint8_t{255}}) {
    std::vector<uint8_t> header(16), body(32), tag(16);
    client_.Seal(7, path, header, body, tag);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), body), 0);
    seen.push_back(body);
    EXPECT_TRUE(server_.Open(7, path, header, body, tag));
  }
}

// Computed by the test step by step from what the headers promise; the answers are the test's own.
TEST_P(AeadProtectionTest, KeysAreTheDocumentedOnes) {
  Peer peer;
  for (uint64_t phase = 0; phase < 3; ++phase) {
    const wire::PacketNumber last = 0x123456789a00 + 2 * phase;
    EXPECT_TRUE(OpensUnder(peer.sending, last, Sealed(client_, last)));
    peer.Prepare(client_);
    peer.Enter(client_);
  }
}

TEST_P(AeadProtectionTest, TheOtherSideFollowsAKeyUpdate) {
  ASSERT_TRUE(Opens(server_, Sealed(client_, 1)));
  Update(client_, server_);
  EXPECT_TRUE(client_.key_phase());
  EXPECT_EQ(client_.peer_updates(), 0u);
  ASSERT_TRUE(Opens(server_, Sealed(client_, 2)));
  EXPECT_EQ(server_.peer_updates(), 1u);
  EXPECT_TRUE(server_.key_phase()) << "sending follows";
  ASSERT_TRUE(Opens(client_, Sealed(server_, 1)));
  EXPECT_EQ(client_.peer_updates(), 1u);
  EXPECT_EQ(client_.own_updates(), 1u) << "following is no second update";
}

TEST_P(AeadProtectionTest, AnAnswerMakesTheOwnOfferVoid) {
  (void)server_.Offer();
  Update(client_, server_);
  EXPECT_TRUE(Opens(server_, Sealed(client_, 1)));
  EXPECT_TRUE(Opens(client_, Sealed(server_, 1)));
  for (const AeadProtection* side : {&client_, &server_}) {
    EXPECT_EQ(side->own_updates(), 1u);
    EXPECT_EQ(side->peer_updates(), 1u);
  }
}

// Would gain: an exchange whose result is public.
TEST_P(AeadProtectionTest, SharesOfLowOrderAreRefused) {
  transport::KeyShare one{};
  one[0] = 1;
  for (const transport::KeyShare& share : {transport::KeyShare{}, one}) {
    EXPECT_FALSE(server_.Answer(share));
    (void)client_.Offer();
    EXPECT_FALSE(client_.Conclude(share));
  }
  Update(client_, server_);
  EXPECT_TRUE(Opens(server_, Sealed(client_, 1)));
}

// All that the memory holds in a phase, and all that has travelled, gives neither the phase before nor,
// without the private part of a share, the next one.
TEST_P(AeadProtectionTest, ASecretOpensNoOtherPhase) {
  const Packet before = Sealed(client_, 1);
  ASSERT_TRUE(Opens(server_, before));
  Update(client_, server_);
  const Packet after = Sealed(client_, 2);
  EXPECT_TRUE(OpensUnder(Secret(1), 1, before));
  EXPECT_FALSE(OpensUnder(Secret(1), 2, after));
  const SecretBytes ratchet =
      HkdfExpandLabel(AeadHash(GetParam()), Secret(1).span(), "update", {}, HashBytes(AeadHash(GetParam())));
  EXPECT_FALSE(OpensUnder(ratchet, 2, after)) << "the present secret alone gives the next one";
}

// Would gain: work for us with every packet.
TEST_P(AeadProtectionTest, WithoutAnExchangeAnotherPhaseOpensNothing) {
  ASSERT_TRUE(Opens(server_, Sealed(client_, 1)));
  AeadProtection ahead(GetParam(), Secret(1), Secret(2)), other(GetParam(), Secret(2), Secret(1));
  Update(ahead, other);
  for (wire::PacketNumber number = 2; number < 100; ++number)
    EXPECT_FALSE(Opens(server_, Sealed(ahead, number)));
  EXPECT_EQ(server_.peer_updates(), 0u);
  EXPECT_EQ(server_.forged_packets(), 0u) << "no key was tried";
}

TEST_P(AeadProtectionTest, PreviousKeysAreGoneOnceTheyAreDropped) {
  const Packet late = Sealed(client_, 1), later = Sealed(client_, 2);
  ASSERT_TRUE(Opens(server_, Sealed(client_, 3)));
  Update(client_, server_);
  ASSERT_TRUE(Opens(server_, Sealed(client_, 4)));
  EXPECT_TRUE(Opens(server_, late));
  server_.DropPrevious();
  EXPECT_FALSE(Opens(server_, later));
  EXPECT_TRUE(Opens(server_, Sealed(client_, 5)));
}

TEST_P(AeadProtectionTest, PacketsOvertakeEachOtherAcrossAnUpdate) {
  const Packet first = Sealed(client_, 1), late = Sealed(client_, 2), later = Sealed(client_, 3);
  ASSERT_TRUE(Opens(server_, first));
  Update(client_, server_);
  const Packet four = Sealed(client_, 4), five = Sealed(client_, 5);
  EXPECT_TRUE(Opens(server_, five));
  EXPECT_TRUE(Opens(server_, late)) << "previous keys";
  EXPECT_TRUE(Opens(server_, four)) << "present keys, below the largest";
  EXPECT_TRUE(Opens(server_, later));
  EXPECT_EQ(server_.peer_updates(), 1u);
  EXPECT_EQ(server_.forged_packets(), 0u) << "one attempt each, never a wrong key";
}

TEST_P(AeadProtectionTest, PacketsOfTwoPhasesAgoAreGone) {
  const Packet ancient = Sealed(client_, 1);
  ASSERT_TRUE(Opens(server_, Sealed(client_, 2)));
  for (uint64_t update = 1; update <= 2; ++update) {
    Update(client_, server_);
    ASSERT_TRUE(Opens(server_, Sealed(client_, 10 * update)));
    ASSERT_TRUE(Opens(client_, Sealed(server_, update)));
  }
  EXPECT_FALSE(Opens(server_, ancient));
  EXPECT_EQ(server_.peer_updates(), 2u);
}

TEST_P(AeadProtectionTest, AnUpdateWaitsForItsExchange) {
  client_.UpdateKeys();
  EXPECT_EQ(client_.own_updates(), 0u);
  Update(client_, server_);
  client_.UpdateKeys();
  client_.UpdateKeys();
  EXPECT_EQ(client_.own_updates(), 1u) << "and a peer that has not followed";
  EXPECT_TRUE(Opens(server_, Sealed(client_, 1)));
}

TEST_P(AeadProtectionTest, AForgedPhaseBitDoesNotMoveTheKeys) {
  ASSERT_TRUE(Opens(server_, Sealed(client_, 1)));
  Packet forged = Sealed(client_, 2);
  forged.header[0] ^= 1;
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(Opens(server_, forged));
  EXPECT_EQ(server_.peer_updates(), 0u);
  EXPECT_TRUE(Opens(server_, Sealed(client_, 3)));
}

// Against a model that knows each packet's phase: what is no older than the previous phase opens, whatever
// the order.
TEST_P(AeadProtectionTest, ArbitraryReorderingOverManyUpdates) {
  constexpr uint64_t kSeed = 20260;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  std::vector<std::pair<uint64_t, Packet>> under_way;  // phase, packet
  uint64_t back = 0, opened = 0, expected = 0;
  for (wire::PacketNumber number = 1; number <= 2000; ++number) {
    // As required: an update only once the peer's answer in the present phase is here.
    if (random.Chance(0.05) && client_.peer_updates() == client_.own_updates() &&
        server_.peer_updates() == client_.own_updates()) {
      Update(client_, server_);
    }
    under_way.emplace_back(client_.own_updates(), Sealed(client_, number));
    while (under_way.size() > 8) {
      const size_t index = random.Below(under_way.size());
      const uint64_t phase = under_way[index].first;
      // The previous phase's keys serve what is below the present phase's packets, which is all of them.
      const bool readable = phase + 1 >= server_.peer_updates();
      const bool opens = Opens(server_, under_way[index].second);
      ASSERT_EQ(opens, readable) << "packet " << under_way[index].second.number << " of phase " << phase;
      opened += opens ? 1 : 0;
      expected += readable ? 1 : 0;
      under_way.erase(under_way.begin() + static_cast<ptrdiff_t>(index));
      ASSERT_TRUE(Opens(client_, Sealed(server_, ++back)));
    }
  }
  EXPECT_EQ(opened, expected);
  EXPECT_GT(client_.own_updates(), 20u);
}

TEST_P(AeadProtectionTest, AKeyPastItsLimitSealsNothing) {
  AeadProtection limited(GetParam(), Secret(1), Secret(2), AeadLimits{.sealed_blocks = 100});
  int readable = 0;
  for (wire::PacketNumber number = 1; number <= 20; ++number) {
    const Packet packet = Sealed(limited, number);
    if (Opens(server_, packet))
      ++readable;
    else
      EXPECT_EQ(std::count(packet.body.begin(), packet.body.end(), 0), 64);
  }
  // 16 bytes of header and 64 of body are 8 blocks.
  EXPECT_EQ(readable, 12);
  Update(limited, server_);
  EXPECT_TRUE(Opens(server_, Sealed(limited, 100))) << "new keys begin anew";
}

TEST_P(AeadProtectionTest, TooManyForgedPacketsEndReceiving) {
  AeadProtection limited(GetParam(), Secret(2), Secret(1), AeadLimits{.forged_packets = 3});
  const Packet good = Sealed(client_, 1);
  Packet bad = good;
  bad.tag[0] ^= 1;
  EXPECT_FALSE(Opens(limited, bad));
  EXPECT_FALSE(Opens(limited, bad));
  EXPECT_TRUE(Opens(limited, good));
  EXPECT_FALSE(Opens(limited, bad));
  EXPECT_FALSE(Opens(limited, good)) << "the third forgery was the last that this connection's keys may meet";
}

TEST_P(AeadProtectionTest, ALimitIsToldWhileThereIsRoomForAClose) {
  AeadProtection sealing(GetParam(), Secret(1), Secret(2),
                         AeadLimits{.sealed_blocks = AeadProtection::kBlocksForClose + 16});
  wire::PacketNumber number = 0;
  for (; sealing.limit_reached().empty(); ++number) ASSERT_TRUE(Opens(server_, Sealed(sealing, number)));
  EXPECT_EQ(number, 3u) << "of 8 blocks each";
  EXPECT_EQ(sealing.limit_reached(), "too much was sealed with one key");
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Opens(server_, Sealed(sealing, ++number))) << "enough for CLOSE";
  Update(sealing, server_);
  EXPECT_EQ(sealing.limit_reached(), "") << "a key update mends it";

  AeadProtection opening(GetParam(), Secret(2), Secret(1), AeadLimits{.forged_packets = 2});
  Packet bad = Sealed(client_, 1);
  bad.tag[0] ^= 1;
  EXPECT_FALSE(Opens(opening, bad));
  EXPECT_EQ(opening.limit_reached(), "");
  EXPECT_FALSE(Opens(opening, bad));
  EXPECT_EQ(opening.limit_reached(), "too many packets did not open");
  Update(opening, client_);
  EXPECT_NE(opening.limit_reached(), "") << "it counts for all keys of a connection";
}

// An exchange allocates, the packets that follow it do not, the one that moves the keys included.
TEST_P(AeadProtectionTest, PacketsDoNotAllocateInAnyPhase) {
  ASSERT_TRUE(HeapWatch::SeesOpenSsl());
  std::vector<uint8_t> header(32), body(1408), tag(16);
  wire::PacketNumber number = 0;
  const auto send = [&](AeadProtection& from, AeadProtection& to) {
    header[0] = from.key_phase() ? 1 : 0;
    from.Seal(++number, 0, header, body, tag);
    return to.Open(number, 0, header, body, tag);
  };
  Update(client_, server_);  // the process's first makes OpenSSL fetch its algorithms
  for (int phase = 0; phase < 8; ++phase) {
    const HeapWatch of_phase;
    if (phase > 0) Update(client_, server_);
    const uint64_t of_exchange = of_phase.allocations();
    // Of both sides: shares, and AEADs and their secrets. 244 with AES and 252 with ChaCha20 of OpenSSL 3.0,
    // most of them OpenSSL's.
    EXPECT_LT(of_exchange, 400u);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(send(client_, server_) && send(server_, client_));
    client_.DropPrevious();
    server_.DropPrevious();
    EXPECT_EQ(of_phase.allocations(), of_exchange) << phase;
    if (phase > 1) {
      EXPECT_EQ(of_phase.blocks(), 0) << "phase " << phase << " leaves something behind";
    }
  }
}

// Each secret of each phase in turn, from before it is derived until three phases later all is gone.
TEST_P(AeadProtectionTest, SecretsOfAllPhasesAreWiped) {
  ASSERT_TRUE(HeapWatch::SeesOpenSsl());
  const Hash hash = AeadHash(GetParam());
  constexpr size_t kPhases = 4, kSecrets = 7;
  for (size_t n = 0; n < kPhases * kSecrets; ++n) {
    const size_t phase = n / kSecrets, which = n % kSecrets;
    SCOPED_TRACE("phase " + std::to_string(phase) + ", secret " + std::to_string(which));
    Peer peer;
    SecretBytes first = Secret(1), second = Secret(2);
    auto client = std::make_unique<AeadProtection>(GetParam(), first, second);
    for (size_t i = 1; i <= phase; ++i) {
      peer.Prepare(*client);
      if (i < phase) peer.Enter(*client);
    }
    const auto of = [&](const SecretBytes& secret, std::string_view label, size_t bytes) {
      return HkdfExpandLabel(hash, secret.span(), label, {}, bytes);
    };
    const std::array<SecretBytes, kSecrets> secrets = {peer.sending,
                                                       peer.receiving,
                                                       of(peer.sending, "key", AeadKeyBytes(GetParam())),
                                                       of(peer.receiving, "key", AeadKeyBytes(GetParam())),
                                                       of(peer.sending, "iv", kAeadNonceBytes),
                                                       of(peer.receiving, "iv", kAeadNonceBytes),
                                                       peer.shared};
    if (secrets[which].empty()) continue;  // phase 0 comes of no exchange
    const HeapWatch watch(secrets[which].span());
    if (phase > 0)
      peer.Enter(*client);
    else
      client = std::make_unique<AeadProtection>(GetParam(), first, second);
    for (int i = 0; i < 3; ++i) {
      peer.Prepare(*client);
      peer.Enter(*client);
    }
    client.reset();
    EXPECT_EQ(watch.leaks(), 0u);
  }
}

std::string SuiteTestName(const testing::TestParamInfo<AeadSuite>& info) {
  constexpr const char* kNames[] = {"Aes128Gcm", "Aes256Gcm", "ChaCha20Poly1305"};
  return kNames[static_cast<size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Suites, AeadProtectionTest,
                         testing::Values(AeadSuite::kAes128Gcm, AeadSuite::kAes256Gcm,
                                         AeadSuite::kChaCha20Poly1305),
                         SuiteTestName);

}  // namespace
}  // namespace longhaul::crypto
