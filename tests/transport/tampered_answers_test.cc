// RETRY and REFUSE, which no connection's keys protect, with every bit changed: the worker connects to the
// server that it means, or ends with a named error.
#include <gtest/gtest.h>

#include <optional>

#include "proto/version.h"
#include "tests/transport/bare_pair.h"
#include "tests/transport/fake_security.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul::transport {
namespace {

using namespace std::chrono_literals;

enum class Keys { kNone, kPsk, kCertificates };

struct Change {
  size_t bit = 0;
  bool always = false;  // every answer of that type; else the first only
  bool sealed = false;  // the tag is made to fit again
};

// A worker and a server, and an attacker between them that changes one bit of what the server answers.
class Tampering {
 public:
  Tampering(Keys keys, wire::LongType type, const Change& change)
      : keys_(keys),
        type_(type),
        change_(change),
        worker_(FakeOptions(keys), 1),
        server_(FakeOptions(keys), 2) {
    BarePair::Options options;
    if (keys != Keys::kNone) {
      options.worker_security = &worker_;
      options.server_security = &server_;
    }
    options.admission.always_cookie = type == wire::LongType::kRetry;
    if (type == wire::LongType::kRefuse) options.max_connections = 0;
    options.lost = [this](int, bool from_worker, MutableByteSpan datagram) {
      if (!from_worker) Tamper(datagram);
      return false;
    };
    pair_.emplace(options);
  }

  // Runs to the end, whichever it is, and checks what must hold for all of them.
  void Run() {
    BarePair& pair = *pair_;
    pair.RunUntil([&] { return pair.BothConnected() || pair.worker.closed > 0; }, 12s);
    if (pair.BothConnected()) {
      ASSERT_EQ(pair.accepted, 1);
      ASSERT_EQ(pair.worker.closed + pair.server.closed, 0);
      // It is this server: what one says the other hears.
      ASSERT_TRUE(pair.connection->SendControl(std::vector<uint8_t>(100, 1)).ok());
      pair.Poll(true);
      pair.Run(1s);
      ASSERT_EQ(pair.server.control_bytes, 100u);
      return;
    }
    ASSERT_EQ(pair.worker.closed, 1) << "the worker knows no end";
    ASSERT_FALSE(pair.worker.close_status.ok()) << "a refusal is no success";
    ASSERT_FALSE(pair.worker.close_status.message().empty());
    ASSERT_EQ(pair.worker.connected + pair.accepted, 0);
    pair.Run(10s);
    ASSERT_EQ(pair.server_endpoint->connection_count(), 0u);
    ASSERT_EQ(pair.worker_endpoint->connection_count(), 0u);
  }

  const BarePair& pair() const { return *pair_; }
  StatusCode code() const { return pair_->worker.close_status.code(); }
  size_t bit() const { return change_.bit; }
  size_t bits() const { return bits_; }  // of such an answer; 0: there was none
  int changed() const { return changed_; }

 private:
  static FakeSecurity::Options FakeOptions(Keys keys) {
    FakeSecurity::Options options;
    options.psk = keys != Keys::kCertificates;
    return options;
  }

  void Tamper(MutableByteSpan datagram) {
    ByteReader reader(datagram);
    const auto header = wire::DecodeLongHeader(reader);
    if (!header || header->type != type_) return;
    bits_ = datagram.size() * 8;
    if (changed_ > 0 && !change_.always) return;
    ++changed_;
    if (wire::HasCookie(type_)) (void)wire::DecodeCookie(reader);
    size_t at = reader.position();
    const auto flip = [&] { datagram[change_.bit / 8] ^= static_cast<uint8_t>(1 << change_.bit % 8); };
    if (!change_.sealed) return flip();
    IntegrityTag tag;
    const bool plain = keys_ == Keys::kNone || type_ == wire::LongType::kRefuse;
    PacketProtection& old = plain ? static_cast<PacketProtection&>(tag) : server_.long_protection();
    ASSERT_TRUE(old.Open(header->packet_number, 0, datagram.first(at), Body(datagram, at), Tag(datagram)));
    flip();
    // As whom it is sent to will read it.
    ByteReader again(datagram);
    const auto changed = wire::DecodeLongHeader(again);
    if (!changed || (wire::HasCookie(changed->type) && !wire::DecodeCookie(again))) return;
    at = again.position();
    if (at + wire::kTagBytes > datagram.size()) return;
    const bool refuse = changed->type == wire::LongType::kRefuse;
    PacketProtection& fresh =
        refuse || keys_ == Keys::kNone ? static_cast<PacketProtection&>(tag) : server_.long_protection();
    fresh.Seal(changed->packet_number, 0, datagram.first(at), Body(datagram, at), Tag(datagram));
  }
  static MutableByteSpan Body(MutableByteSpan datagram, size_t at) {
    return datagram.subspan(at, datagram.size() - at - wire::kTagBytes);
  }
  static MutableByteSpan Tag(MutableByteSpan datagram) { return datagram.last(wire::kTagBytes); }

  Keys keys_;
  wire::LongType type_;
  Change change_;
  FakeSecurity worker_, server_;
  std::optional<BarePair> pair_;
  size_t bits_ = 0;
  int changed_ = 0;
};

// Calls check(run, bit) for every bit of the answer.
template <typename Check>
void ForEveryBit(Keys keys, wire::LongType type, Change change, Check check) {
  size_t bits = 1;
  for (change.bit = 0; change.bit < bits; ++change.bit) {
    SCOPED_TRACE(testing::Message() << "bit " << change.bit << ", keys " << static_cast<int>(keys));
    Tampering run(keys, type, change);
    run.Run();
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_GT(run.changed(), 0);
    bits = run.bits();
    check(run);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GE(bits, 8 * (wire::kLongHeaderBytes + wire::kTagBytes));
}

constexpr Keys kWithKeys[] = {Keys::kPsk, Keys::kCertificates};
constexpr Keys kAll[] = {Keys::kNone, Keys::kPsk, Keys::kCertificates};

TEST(TamperedRetry, IsALostOne) {
  for (const Keys keys : kWithKeys) {
    ForEveryBit(keys, wire::LongType::kRetry, {}, [](const Tampering& run) {
      EXPECT_TRUE(run.pair().BothConnected()) << "the next one is whole";
      EXPECT_EQ(run.pair().connection->stats().retries, 1u);
    });
  }
}

TEST(TamperedRetry, WhenAllAreThereIsNoConnection) {
  for (const Keys keys : kWithKeys) {
    ForEveryBit(keys, wire::LongType::kRetry, {.always = true},
                [](const Tampering& run) { EXPECT_EQ(run.code(), StatusCode::kUnavailable); });
  }
}

// The key of long packets is public with certificates: an attacker on the path can make the tag fit.
TEST(TamperedRetry, WithATagThatFitsCostsARoundTripAtMost) {
  int cookies = 0;
  ForEveryBit(Keys::kCertificates, wire::LongType::kRetry, {.sealed = true}, [&](const Tampering& run) {
    // Bit 1 is of the type: an ACCEPT now, of which nothing can come from a server.
    ASSERT_TRUE(run.pair().BothConnected());
    EXPECT_LE(run.pair().connection->stats().retries, 2u);
    cookies += run.pair().server_endpoint->stats().cookies_refused > 0 ? 1 : 0;
  });
  EXPECT_GE(cookies, 8 * static_cast<int>(kCookieBytes)) << "every bit of the cookie matters";
}

TEST(TamperedRetry, AlwaysAndWithATagThatFitsEndsOneWayOrTheOther) {
  int connected = 0, refused = 0;
  ForEveryBit(Keys::kCertificates, wire::LongType::kRetry, {.always = true, .sealed = true},
              [&](const Tampering& run) { ++(run.pair().BothConnected() ? connected : refused); });
  EXPECT_GE(connected, 64) << "a RETRY's source means nothing";
  EXPECT_GE(refused, 8 * static_cast<int>(kCookieBytes));
}

TEST(TamperedRefuse, IsALostOne) {
  for (const Keys keys : kAll) {
    ForEveryBit(keys, wire::LongType::kRefuse, {}, [](const Tampering& run) {
      EXPECT_EQ(run.code(), StatusCode::kResourceExhausted) << "the next one is whole";
    });
  }
}

TEST(TamperedRefuse, WhenAllAreThereIsNoAnswer) {
  for (const Keys keys : kAll) {
    ForEveryBit(keys, wire::LongType::kRefuse, {.always = true},
                [](const Tampering& run) { EXPECT_EQ(run.code(), StatusCode::kUnavailable); });
  }
}

// Its tag needs no secret: words and code may change, but the connection still ends with an error.
TEST(TamperedRefuse, WithATagThatFitsIsStillARefusal) {
  for (const Keys keys : kAll) {
    for (const bool always : {false, true}) {
      ForEveryBit(keys, wire::LongType::kRefuse, {.always = always, .sealed = true},
                  [](const Tampering& run) { EXPECT_EQ(run.pair().worker.closed, 1); });
    }
  }
}

}  // namespace
}  // namespace longhaul::transport
