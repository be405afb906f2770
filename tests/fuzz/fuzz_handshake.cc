// Two Handshakes from bytes, in virtual time: CRYPTO frames are lost, repeated, reordered, cut, and made up.
// Unless they were made up, both complete once the network is good again; always the amplification bound
// holds, every timer leads somewhere, and time-outs do not come closer together than they should.
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"
#include "tests/transport/fake_security.h"
#include "transport/core/connection/handshake.h"

using namespace longhaul;             // NOLINT
using namespace longhaul::transport;  // NOLINT

namespace {

struct Packet {
  uint64_t offset = 0;
  uint64_t received = 0;
  std::vector<uint8_t> data;
  int64_t bytes = 0;
  bool knows_us = false;  // the sender has had a packet of ours
};

class World {
 public:
  explicit World(uint8_t kind) {
    FakeSecurity::Options options;
    options.server_flight = (kind & 1) != 0 ? 9000 : 700;
    options.client_last = (kind & 2) != 0 ? 3000 : 100;
    for (size_t side = 0; side < 2; ++side) {
      securities_[side] = std::make_unique<FakeSecurity>(options, side + 1);
      sides_[side] = std::make_unique<Handshake>(side == 0, securities_[side]->NewSession(side == 0));
    }
  }

  void Step(FuzzInput& in) {
    const uint8_t op = in.U8();
    const size_t to = op >> 4 & 1;
    auto& queue = queues_[to];
    switch (op & 15) {
      case 1:
        if (!queue.empty()) queue.pop_front();
        break;
      case 2:
        if (!queue.empty() && queue.size() < 200) queue.push_back(queue[in.U8() % queue.size()]);
        break;
      case 3: {
        forged_ = true;
        Packet packet;
        packet.offset = in.U8() < 128 ? in.U8() : in.U16();
        packet.received = in.Below(300);
        const ByteSpan data = in.Bytes(in.U8());
        packet.data.assign(data.begin(), data.end());
        packet.bytes = 1200;
        packet.knows_us = in.Flag();
        Give(to, packet);
        break;
      }
      case 4:
        if (!queue.empty()) {  // cut: what is left comes again
          Packet& packet = queue.front();
          packet.data.resize(in.U16() % (packet.data.size() + 1));
        }
        break;
      case 5:
        now_ += std::chrono::milliseconds(in.U16() % 2000);
        Timers();
        break;
      case 6:
        if (to == 0) sides_[0]->OnRetry();
        break;
      default:
        Poll();
        if (!queue.empty()) {
          const Packet packet = std::move(queue.front());
          queue.pop_front();
          Give(to, packet);
        }
        now_ += std::chrono::milliseconds(10);
        Timers();
    }
    Poll();
  }

  void Finish() {
    for (int round = 0; round < 2000 && !failed_ && !Done(); ++round) {
      Poll();
      for (size_t to = 0; to < 2; ++to) {
        while (!queues_[to].empty() && !failed_) {
          const Packet packet = std::move(queues_[to].front());
          queues_[to].pop_front();
          Give(to, packet);
        }
      }
      now_ += std::chrono::milliseconds(10);
      Timers();
    }
    FUZZ_REQUIRE(forged_ || (!failed_ && Done()));
  }

 private:
  bool Done() const { return sides_[0]->complete() && sides_[1]->complete(); }

  void Timers() {
    for (auto& side : sides_) {
      side->OnTimeout(now_);
      FUZZ_REQUIRE(side->Deadline() > now_);
    }
  }

  void Poll() {
    for (size_t from = 0; from < 2; ++from) {
      Handshake& side = *sides_[from];
      for (int packets = 0; side.WantsToSend() && side.MaySend(1200); ++packets) {
        FUZZ_REQUIRE(packets < 100);
        Packet packet;
        const bool first = side.AtFlightStart();
        size_t data = 0;
        if (const auto frame = side.NextFrame(1100)) {
          packet.offset = frame->offset;
          packet.received = frame->received;
          packet.data.assign(frame->data.begin(), frame->data.end());
          data = packet.data.size();
          FUZZ_REQUIRE(packet.offset + data <= wire::kMaxHandshakeBytes);
        }
        packet.bytes = first || from == 0 ? 1200 : static_cast<int64_t>(data) + 100;
        packet.knows_us = heard_[from];
        side.OnSent(now_, data, packet.bytes);
        sent_[from] += packet.bytes;
        if (from == 1) FUZZ_REQUIRE(proved_ || sent_[1] <= 3 * received_);
        if (queues_[1 - from].size() < 300) queues_[1 - from].push_back(std::move(packet));
      }
      FUZZ_REQUIRE(side.WantsToSend() || side.Deadline() > now_);
    }
  }

  void Give(size_t to, const Packet& packet) {
    if (failed_) return;
    Handshake& side = *sides_[to];
    heard_[to] = true;
    if (to == 1) {
      received_ += packet.bytes;
      proved_ = proved_ || packet.knows_us;
    }
    side.OnPacket(packet.bytes, packet.knows_us);
    const Status status = side.OnCrypto(now_, {packet.offset, packet.received, packet.data});
    FUZZ_REQUIRE(status.ok() || (forged_ && !status.message().empty()));
    failed_ = !status.ok();  // the connection would end
    if (failed_) return;
    side.OnPacketEnd(now_);
    (void)side.TakeRttSample();
  }

  Instant now_ = Instant::FromNanoseconds(1'000'000'000);
  std::array<std::unique_ptr<FakeSecurity>, 2> securities_;
  std::array<std::unique_ptr<Handshake>, 2> sides_;
  std::array<std::deque<Packet>, 2> queues_;
  std::array<int64_t, 2> sent_{};
  std::array<bool, 2> heard_{};
  int64_t received_ = 0;
  bool proved_ = false;
  bool forged_ = false;
  bool failed_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput in(data, size);
  World world(in.U8());
  for (int steps = 0; !in.empty() && steps < 300; ++steps) world.Step(in);
  world.Finish();
  return 0;
}
