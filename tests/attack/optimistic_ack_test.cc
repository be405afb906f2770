// A member that acknowledges what its path has dropped, to be sent more than its share of it.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "base/token_bucket.h"
#include "codec/fec/fec.h"
#include "proto/frames.h"
#include "tests/attack/support/attack_test.h"
#include "worker/client/worker_core.h"

namespace longhaul::attack {
namespace {

using transport::PacketProtection;

// While `lies` is set, the ACKs that this connection sends name one range, from 0 to the largest number.
class LyingProtection final : public PacketProtection {
 public:
  LyingProtection(std::unique_ptr<PacketProtection> honest, const bool* lies)
      : honest_(std::move(honest)), lies_(lies) {}

  void Seal(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
            MutableByteSpan tag) override {
    if (*lies_ && header.size() == wire::kShortHeaderBytes) Lie(body);
    honest_->Seal(number, path, header, body, tag);
  }
  bool Open(wire::PacketNumber number, uint8_t path, ByteSpan header, MutableByteSpan body,
            ByteSpan tag) override {
    return honest_->Open(number, path, header, body, tag);
  }
  bool IsSecure() const override { return true; }
  bool key_phase() const override { return honest_->key_phase(); }
  transport::KeyShare Offer() override { return honest_->Offer(); }
  std::optional<transport::KeyShare> Answer(const transport::KeyShare& offer) override {
    return honest_->Answer(offer);
  }
  bool Conclude(const transport::KeyShare& answer) override { return honest_->Conclude(answer); }
  void UpdateKeys() override { honest_->UpdateKeys(); }
  uint64_t peer_updates() const override { return honest_->peer_updates(); }

 private:
  static void Lie(MutableByteSpan body) {
    Bytes fresh(body.size());
    ByteWriter out(fresh);
    ByteReader frames(body);
    while (frames.ok() && !frames.AtEnd()) {
      Result<wire::Frame> frame = wire::DecodeFrame(frames);
      if (!frame.ok()) return;
      if (auto* ack = std::get_if<wire::AckFrame>(&*frame)) ack->ranges = {{0, ack->ranges.front().largest}};
      if (!wire::Encode(*frame, out)) return;
    }
    std::copy(fresh.begin(), fresh.end(), body.begin());  // what is left is padding
  }

  std::unique_ptr<PacketProtection> honest_;
  const bool* lies_;
};

class LyingSession final : public transport::HandshakeCrypto {
 public:
  LyingSession(std::unique_ptr<HandshakeCrypto> honest, const bool* lies)
      : honest_(std::move(honest)), lies_(lies) {}
  Status HandleData(ByteSpan bytes) override { return honest_->HandleData(bytes); }
  std::vector<uint8_t> TakeData() override { return honest_->TakeData(); }
  bool complete() const override { return honest_->complete(); }
  const transport::PeerIdentity& peer() const override { return honest_->peer(); }
  std::unique_ptr<PacketProtection> MakeProtection(ByteSpan context) override {
    return std::make_unique<LyingProtection>(honest_->MakeProtection(context), lies_);
  }

 private:
  std::unique_ptr<HandshakeCrypto> honest_;
  const bool* lies_;
};

class LyingSecurity final : public transport::Security {
 public:
  explicit LyingSecurity(const std::string& key_file) {
    auto loaded = keys::LoadSecurity({.key_file = key_file, .role = crypto::Role::kWorker});
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
    honest_ = *std::move(loaded);
  }
  std::unique_ptr<transport::HandshakeCrypto> NewSession(bool is_client) override {
    return std::make_unique<LyingSession>(honest_.security()->NewSession(is_client), &lies);
  }
  PacketProtection& long_protection() override { return honest_.security()->long_protection(); }
  std::optional<transport::Cookie> MakeCookie(Instant, const Address&, wire::ConnectionId) override {
    return std::nullopt;
  }
  bool CheckCookie(Instant, const Address&, wire::ConnectionId, ByteSpan) override { return false; }
  std::array<uint8_t, 16> ResetToken(wire::ConnectionId) override { return {}; }
  uint64_t Unpredictable(uint64_t seeded) override { return honest_.security()->Unpredictable(seeded); }
  bool IsSecure() const override { return true; }

  bool lies = false;

 private:
  keys::LoadedSecurity honest_;
};

// A whole worker behind a link of 2 MB/s with a queue of 50 kB, which drops what is beyond.
class Member {
 public:
  Member(uint16_t port, const std::string& key_file)
      : security_(key_file), server_(Address::V4(127, 0, 0, 1, port)), fd_(::socket(AF_INET, SOCK_DGRAM, 0)) {
    const int room = 32 << 20;
    (void)::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(port);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    worker::WorkerCoreOptions options;
    options.security = &security_;
    options.connection.receive_window = ByteCount(int64_t{1} << 30);
    core_.emplace(options, nullptr, Random(7));
    core_->Start(Now(), server_);
  }
  ~Member() { ::close(fd_); }

  worker::WorkerCore& core() { return *core_; }
  LyingSecurity& security() { return security_; }
  int64_t arrived = 0;  // bytes at the link, before it drops

  template <typename Predicate>
  bool RunUntil(Predicate done, Duration limit) {
    const Instant end = Now() + limit;
    while (!done() && Now() < end) {
      for (int slices = 0; core_->HasWork() && slices < 50; ++slices) core_->Work(Now());
      Send();
      pollfd ready{fd_, POLLIN, 0};
      (void)::poll(&ready, 1, 1);
      Receive();
      if (core_->NextTimeout() <= Now()) core_->HandleTimeout(Now());
    }
    return done();
  }

 private:
  static Instant Now() {
    return Instant::FromNanoseconds(
        std::chrono::duration_cast<std::chrono::nanoseconds>(e2e::Clock::now().time_since_epoch()).count());
  }
  void Send() {
    while (const auto t = core_->PollTransmit(Now(), buffer_)) {
      for (size_t at = 0; at < t->size; at += t->segment_bytes) {
        (void)::send(fd_, buffer_.data() + at, std::min(t->segment_bytes, t->size - at), 0);
      }
    }
  }
  void Receive() {
    for (int i = 0; i < 200; ++i) {
      const ssize_t got = ::recv(fd_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (got <= 0) return;
      arrived += got;
      if (!link_.Take(Now(), static_cast<double>(got))) continue;
      core_->HandleDatagram(Now(), server_, MutableByteSpan(buffer_).first(static_cast<size_t>(got)), {});
      Send();
    }
  }

  LyingSecurity security_;
  Address server_;
  int fd_;
  TokenBucket link_{2e6, 50e3};
  std::vector<uint8_t> buffer_ = std::vector<uint8_t>(1 << 16);
  std::optional<worker::WorkerCore> core_;
};

class OptimisticAck : public AttackTest {};

// Would gain: 32 MB in less than a second, of which the link drops all but 2, and the others' share of
// it.
TEST_F(OptimisticAck, TheServerSendsALiarLittleAndEndsIt) {
  constexpr size_t kElements = 8'000'000;
  constexpr int64_t kHonest = 1'000'000;  // bytes of the result, before it begins to lie
  StartTarget({{"--workers", "1"}, {"--fec-k", "0"}});
  Member member(port(), key_file());
  bool declared = false;
  worker::TensorHandle tensor = 0;
  ASSERT_TRUE(member.RunUntil([&] { return member.core().joined(); }, kPatience));
  member.core().Declare({.name = "w", .count = kElements}, [&](const Result<worker::TensorHandle>& handle) {
    EXPECT_TRUE(handle.ok()) << handle.status().ToString();
    declared = true;
    tensor = handle.ok() ? *handle : 0;
  });
  ASSERT_TRUE(member.RunUntil([&] { return declared; }, kPatience));
  const std::vector<float> gradient(kElements, 1);
  std::vector<float> result(kElements);
  bool over = false;
  const int64_t before = member.arrived;
  member.core().PushPull(tensor, gradient, result, [&](const Status&, const auto&) { over = true; });
  // The ACKs of the push are small; bulk is the result.
  ASSERT_TRUE(member.RunUntil([&] { return over || member.arrived - before > kHonest; }, 4 * kPatience));
  ASSERT_FALSE(over);
  member.security().lies = true;
  const int64_t since = member.arrived;
  EXPECT_TRUE(member.RunUntil([&] { return over || member.core().ended(); }, kPatience));
  EXPECT_EQ(member.core().failure().code(), StatusCode::kProtocolViolation)
      << member.core().failure().ToString();
  std::cout << "sent to the liar: " << (member.arrived - since) / 1000 << " kB\n";
  EXPECT_LT(member.arrived - since, 8'000'000) << "of 32 MB";
  EXPECT_TRUE(server().WaitForError("left out")) << server().Everything();
}

}  // namespace
}  // namespace longhaul::attack
