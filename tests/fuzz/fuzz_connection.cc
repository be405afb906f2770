// Whole endpoints from bytes, in virtual time. A worker and a server talk over a network that the input
// controls: it delivers, drops, repeats and delays datagrams, changes bytes (with a correct tag, as a
// malicious peer would), and invents packets. The first byte says whether the two have keys (tests/transport/
// fake_security.h: a handshake of several flights, cookies, key updates) or not, whether the server is wary
// of whom it has not admitted, and whether they are connected already. It also plays the applications on both
// sides. Afterwards the network falls silent, and every connection must end by itself, with every timer in
// the future. What an input allocates is bounded.
#include <array>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "proto/version.h"
#include "tests/fuzz/arena.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"
#include "tests/fuzz/values.h"
#include "tests/sim/reference_coder.h"
#include "tests/transport/application.h"
#include "tests/transport/fake_security.h"
#include "transport/core/security/integrity_tag.h"

using namespace longhaul;             // NOLINT
using namespace longhaul::transport;  // NOLINT

namespace {

using Bytes = std::vector<uint8_t>;
using fuzz::Buffer;
constexpr size_t kMaxQueued = 200;
// Polls that one event may cause: what the congestion window holds, and then some.
constexpr int kMaxPolls = 5000;
constexpr int kMaxWakeUps = 20000;
// Steps of an input: what is found later is found sooner by a shorter one.
constexpr int kMaxSteps = 40;
// Of RunNetwork, in all steps: they are most of an input's time.
constexpr int kMaxExchanges = 32;
// Both sides' windows and queues, eight connections; and all that steps come and go with.
constexpr size_t kMaxLive = 24 << 20;
constexpr uint64_t kMaxAllocated = 256 << 20;

ByteSpan Body() {
  static const auto body = [] {
    std::array<uint8_t, 4096> bytes{};
    bytes.fill(0x5a);
    return bytes;
  }();
  return body;
}

class FuzzedApplication : public Application {
 public:
  void OnConnected(Connection&) override { ++connected_; }
  void OnClosed(Connection& connection, const Status&) override {
    if (connection_ == &connection) connection_ = nullptr;
    ++closed_;
  }
  void OnControlData(Connection&, ByteSpan bytes) override {
    for (const uint8_t byte : bytes) FUZZ_REQUIRE(*forged_ || byte == ControlByte(control_received_++));
  }
  Status OnWindowOpened(Connection&, WindowKey key, const wire::WindowOpenFrame&) override {
    if (refuse_windows_) return Status(StatusCode::kUnavailable, "not now");
    incoming_.insert(key);
    return Status::Ok();
  }
  ChunkVerdict OnChunk(Connection&, const event::Chunk& chunk) override {
    const auto& [key, reliability, sequence, bytes, repaired] = chunk;
    FUZZ_REQUIRE(!bytes.empty());
    FUZZ_REQUIRE(incoming_.contains(key));
    FUZZ_REQUIRE(admitted_);
    FUZZ_REQUIRE(delivered_.insert({key, {reliability, sequence}}).second);  // exactly once
    return sequence % 5 == 3 ? ChunkVerdict::kRefused : ChunkVerdict::kTaken;
  }
  void OnWindowState(Connection& connection, const event::WindowState& state) override {
    FUZZ_REQUIRE(incoming_.contains(state.key));
    if (state.window.complete) connection.CloseWindow(state.key, wire::CloseReason::kComplete);
  }
  void OnWindowClosed(Connection&, const event::WindowClosed& closed) override {
    FUZZ_REQUIRE(outgoing_.erase(closed.key) == 1);
  }

  // wary: ConnectionOptions::wary; admitted when Act says so.
  void Attach(Connection* connection, const bool* forged, bool wary = false) {
    connection_ = connection;
    forged_ = forged;
    wary_ = wary;
    admitted_ = !wary;
  }

  // The application does something that its API allows.
  void Act(FuzzInput& in) {
    if (connection_ == nullptr) return;
    Connection& c = *connection_;
    switch (in.Below(8)) {
      case 0:
        SendControl(c, in.Below(4096));
        break;
      case 1:
        Open(c, in);
        break;
      case 2:
        Submit(c, in);
        break;
      case 3:
        if (!incoming_.empty())
          c.CloseWindow(*incoming_.rbegin(), static_cast<wire::CloseReason>(in.Below(6)));
        break;
      case 4:
        if (!outgoing_.empty()) {
          c.CancelWindow(*outgoing_.begin());
          outgoing_.erase(outgoing_.begin());
        }
        break;
      case 5:
        c.Grant(Bandwidth::Mbps(in.U8()), ByteCount(in.U16()));
        break;
      case 6:
        refuse_windows_ = in.Flag();
        if (!incoming_.empty()) c.RequestMissing(*incoming_.rbegin());
        Ask(c);
        break;
      default:
        if (const uint8_t what = in.U8(); what > 240) {
          c.Close(Status(StatusCode::kAborted, "the application has had enough"));
        } else if (wary_ && what < 32) {
          admitted_ = what % 2 == 1;
          c.Admit(admitted_);
        }
        break;
    }
  }

  int connected() const { return connected_; }
  int closed() const { return closed_; }

 private:
  void Open(Connection& c, FuzzInput& in) {
    WindowOptions options;
    options.key = {in.U8(), static_cast<uint8_t>(in.Below(2))};
    options.high_count = in.Below(60);
    options.low_count = in.Below(60);
    options.symbol_bytes = static_cast<uint16_t>(16 * (1 + in.Below(60)));
    options.fec_k = in.Flag() ? 8 : 0;
    options.fec_depth = static_cast<uint8_t>(1 + in.Below(4));
    if (!c.OpenWindow(options).ok()) return;
    outgoing_.insert(options.key);
    last_ = options;
    if (in.Flag()) {
      for (uint32_t i = in.Below(120); i > 0; --i) Submit(c, in);
      return;
    }
    for (uint32_t i = 0; i < options.high_count; ++i) SubmitTo(c, wire::ReliabilityClass::kHigh);
    for (uint32_t i = 0; i < options.low_count; ++i) SubmitTo(c, wire::ReliabilityClass::kLow);
  }

  void Submit(Connection& c, FuzzInput& in) {
    SubmitTo(c, in.Flag() ? wire::ReliabilityClass::kLow : wire::ReliabilityClass::kHigh);
  }

  void SubmitTo(Connection& c, wire::ReliabilityClass reliability) {
    const size_t room = last_.symbol_bytes > 12 ? last_.symbol_bytes - 12 : 0;
    (void)c.SubmitChunk(last_.key, reliability, Body().first(12), Body().first(room));
  }

  // The byte at an offset of every control stream, so that the receiver can tell order and completeness.
  static uint8_t ControlByte(uint64_t offset) { return static_cast<uint8_t>(offset * 7 + (offset >> 8)); }

  void SendControl(Connection& c, size_t bytes) {
    Bytes data(bytes);
    for (size_t i = 0; i < bytes; ++i) data[i] = ControlByte(control_sent_ + i);
    if (c.SendControl(data).ok()) control_sent_ += bytes;
  }

  static void Ask(Connection& c) {
    const ConnectionStats stats = c.stats();
    FUZZ_REQUIRE(stats.loss >= 0 && stats.loss <= 1);
    FUZZ_REQUIRE(stats.bytes_in_flight >= ByteCount(0));
    FUZZ_REQUIRE(c.backlog() >= ByteCount(0));
    FUZZ_REQUIRE(c.MaxChunkBytes() % 16 == 0 &&
                 ByteCount(static_cast<int64_t>(c.MaxChunkBytes())) < c.max_datagram());
  }

  Connection* connection_ = nullptr;
  std::set<WindowKey> incoming_, outgoing_;
  std::set<std::pair<WindowKey, std::pair<wire::ReliabilityClass, uint32_t>>> delivered_;
  WindowOptions last_;
  bool refuse_windows_ = false;
  bool wary_ = false;
  bool admitted_ = true;
  const bool* forged_ = nullptr;  // the network has invented or changed packets
  uint64_t control_sent_ = 0;
  uint64_t control_received_ = 0;
  int connected_ = 0;
  int closed_ = 0;
};

class World {
 public:
  // kind: bit 0 keys, bit 1 a long server flight, bit 2 cookies always, bit 3 long packets under a public
  // key, bit 4 a server that keeps little for whom it has not admitted, bit 5 both are connected.
  explicit World(uint8_t kind) : secure_((kind & 1) != 0) {
    FakeSecurity::Options security;
    security.psk = (kind & 8) == 0;
    security.server_flight = (kind & 2) != 0 ? 5000 : 700;
    for (size_t side = 0; side < 2; ++side) {
      EndpointOptions options;
      securities_[side] = std::make_unique<FakeSecurity>(security, side + 7);
      if (secure_) options.security = securities_[side].get();
      options.admission.always_cookie = (kind & 4) != 0;
      options.admission.max_half_open = 4;
      options.connection.key_update = {.packets = 20, .spacing = Duration(0)};
      options.accepts = side == 1;
      options.connection.wary = side == 1 && (kind & 16) != 0;
      options.coder = &coder_;
      options.connection.max_window_bytes = ByteCount(1 << 20);
      options.connection.max_open_windows = 8;
      options.connection.max_control_backlog = ByteCount(16384);
      options.max_connections = 8;
      const auto accept = [this, wary = options.connection.wary](Connection& connection) -> Application* {
        applications_.push_back(std::make_unique<FuzzedApplication>());
        applications_.back()->Attach(&connection, &forged_, wary);
        if (server_ == nullptr) server_ = applications_.back().get();
        server_id_ = connection.local_id();
        return applications_.back().get();
      };
      sides_[side].address = Address::V4(10, 0, 0, static_cast<uint8_t>(side + 1), 7700);
      sides_[side].endpoint = std::make_unique<PumpedEndpoint>(options, Random(side + 1), accept);
    }
    Connection* connection = sides_[0].endpoint->Connect(now_, sides_[1].address, &worker_);
    worker_.Attach(connection, &forged_);
    worker_id_ = connection->local_id();
    Poll(0);
    if ((kind & 32) == 0) return;
    for (int rounds = 0; rounds < 40 && worker_.connected() == 0; ++rounds) Exchange(0, nullptr);
    FUZZ_REQUIRE(worker_.connected() == 1 && server_ != nullptr);
    for (int rounds = 0; rounds < 4; ++rounds) Exchange(0, nullptr);
  }

  void Step(FuzzInput& in) {
    const uint8_t op = in.U8();
    const size_t to = op & 1;
    switch (op >> 1 & 7) {
      case 0:
        Deliver(to, in.U8() % 16 + 1u);
        break;
      case 1:
        RunNetwork(in);
        break;
      case 2:
        if (!sides_[to].queue.empty()) sides_[to].queue.pop_front();  // lost
        break;
      case 3:
        Repeat(to, in);
        break;
      case 4:
        Corrupt(to, in);
        break;
      case 5:
        Invent(to, in);
        break;
      case 6:
        Advance(std::chrono::microseconds(in.U16() * (in.Flag() ? 50 : 1)));
        break;
      default:
        if (op >= 0xfe)
          sides_[to].endpoint->CloseAll(Status(StatusCode::kCancelled, "going down"));
        else if (op >= 0xf0)
          sides_[to].endpoint->HandleSendRefused(now_, sides_[1 - to].address, in.U16());
        else if (to == 0)
          worker_.Act(in);
        else if (server_ != nullptr)
          server_->Act(in);
        Poll(to);
        break;
    }
  }

  // Nothing is delivered any more: everyone must come to an end within idle and close time-outs.
  void Silence() {
    const Instant end = now_ + std::chrono::seconds(60);
    for (int wake_ups = 0; now_ < end; ++wake_ups) {
      FUZZ_REQUIRE(wake_ups < kMaxWakeUps);
      const Instant next = std::min(sides_[0].endpoint->NextTimeout(), sides_[1].endpoint->NextTimeout());
      if (next.IsInfinite()) break;
      now_ = std::max(now_, next);
      for (size_t side = 0; side < 2; ++side) {
        if (sides_[side].endpoint->NextTimeout() <= now_) {
          sides_[side].endpoint->HandleTimeout(now_);
          Poll(side);
        }
        sides_[side].queue.clear();
      }
    }
    FUZZ_REQUIRE(sides_[0].endpoint->connection_count() == 0);
    FUZZ_REQUIRE(sides_[1].endpoint->connection_count() == 0);
    FUZZ_REQUIRE(worker_.closed() == 1);
    for (const auto& application : applications_) FUZZ_REQUIRE(application->closed() == 1);
  }

 private:
  struct Side {
    Address address;
    std::unique_ptr<PumpedEndpoint> endpoint;
    std::deque<Bytes> queue;  // on their way to this side
  };

  void Poll(size_t side) {
    Side& from = sides_[side];
    Side& to = sides_[1 - side];
    for (int polls = 0;; ++polls) {
      FUZZ_REQUIRE(polls < kMaxPolls);
      const std::optional<Transmit> transmit = from.endpoint->PollTransmit(now_, Buffer());
      if (!transmit) return;
      FUZZ_REQUIRE(transmit->size > 0 && transmit->size <= Buffer().size());
      FUZZ_REQUIRE(transmit->segment_bytes > 0 && transmit->segment_bytes <= transmit->size);
      if (transmit->destination != to.address) continue;
      for (size_t at = 0; at < transmit->size; at += transmit->segment_bytes) {
        const size_t size = std::min(transmit->segment_bytes, transmit->size - at);
        FUZZ_REQUIRE(size <= 1452);
        if (to.queue.size() < kMaxQueued)
          to.queue.emplace_back(Buffer().begin() + at, Buffer().begin() + at + size);
      }
    }
  }

  void Give(size_t to, Bytes datagram) {
    sides_[to].endpoint->HandleDatagram(now_, sides_[1 - to].address, datagram, {});
    Poll(to);
  }

  void Deliver(size_t to, size_t count) {
    for (; count > 0 && !sides_[to].queue.empty(); --count) {
      Bytes datagram = std::move(sides_[to].queue.front());
      sides_[to].queue.pop_front();
      Give(to, std::move(datagram));
    }
  }

  // An ordinary network for a while: everything arrives 5 ms later, but for what a pattern of losses takes.
  void RunNetwork(FuzzInput& in) {
    const uint8_t losses = in.U8();
    int number = 0;
    for (int rounds = 1 + in.U8() % 8; rounds > 0 && exchanges_left_ > 0; --rounds, --exchanges_left_) {
      Exchange(losses, &number);
    }
  }

  void Exchange(uint8_t losses, int* number) {
    for (size_t side = 0; side < 2; ++side) {
      for (size_t count = sides_[side].queue.size(); count > 0 && !sides_[side].queue.empty(); --count) {
        if (losses != 0 && (losses >> (*number)++ % 8 & 1) != 0) {
          sides_[side].queue.pop_front();
        } else {
          Deliver(side, 1);
        }
      }
    }
    Advance(std::chrono::milliseconds(5));
  }

  void Repeat(size_t to, FuzzInput& in) {
    auto& queue = sides_[to].queue;
    if (queue.empty() || queue.size() >= kMaxQueued) return;
    queue.push_back(queue[in.U8() % queue.size()]);
  }

  void Corrupt(size_t to, FuzzInput& in) {
    auto& queue = sides_[to].queue;
    if (queue.empty()) return;
    forged_ = true;
    Bytes& datagram = queue.front();
    for (uint32_t changes = 1 + in.Below(4); changes > 0; --changes) {
      const size_t at = in.U8() < 200 ? in.Below(64) : in.U16();
      datagram[at % datagram.size()] = in.U8();
    }
    if (in.Flag()) datagram.resize(in.U16() % (datagram.size() + 1));
    if (in.U8() < 230) Seal(to, datagram);
    Deliver(to, 1);
  }

  // Gives a packet for `to` a tag that fits, as an insider could. Its body then is what the receiver sees.
  void Seal(size_t to, Bytes& datagram) {
    ByteReader reader(datagram);
    wire::PacketNumber number = 0;
    const bool is_long = wire::IsLongHeader(datagram);
    bool refuse = false;
    if (is_long) {
      const auto decoded = wire::DecodeLongHeader(reader);
      if (!decoded) return;
      number = decoded->packet_number;
      refuse = decoded->type == wire::LongType::kRefuse;
      if (wire::HasCookie(decoded->type) && !wire::DecodeCookie(reader)) return;
    } else {
      const auto decoded = wire::DecodeShortHeader(reader);
      if (!decoded) return;
      number = decoded->packet_number;
      if (decoded->has_data) reader.Bytes(wire::kDataHeaderBytes);
    }
    const size_t header = reader.position();
    if (!reader.ok() || datagram.size() < header + wire::kTagBytes) return;
    const MutableByteSpan all(datagram);
    IntegrityTag tag;
    FakeProtection keys(securities_[to]->last_secret, to == 1);
    if (!is_long && (datagram[0] & 1) != 0)
      keys.UpdateKeys();  // generation 1, the only odd one that an insider has
    PacketProtection* protection = &tag;
    if (secure_ && !refuse) protection = is_long ? &securities_[to]->long_protection() : &keys;
    protection->Seal(number, 0, all.first(header), all.subspan(header, all.size() - header - wire::kTagBytes),
                     all.last(wire::kTagBytes));
  }

  // A packet of any content, as authentic as the receiver can tell.
  void Invent(size_t to, FuzzInput& in) {
    forged_ = true;
    Bytes datagram(1452);
    ByteWriter out(datagram);
    const wire::ConnectionId destination = to == 0 ? worker_id_ : server_id_;
    const uint8_t kind = in.U8();
    // Numbers close to what the peer really uses, so that ACKs of them are possible as well.
    const wire::PacketNumber number = kind < 128 ? next_invented_++ : in.U8();
    if (kind % 8 == 7) {
      wire::LongHeader header{static_cast<wire::LongType>(in.Below(4)),
                              in.U8() < 240 ? wire::kVersion : in.U16(),
                              to == 0 ? destination : wire::ConnectionId{},
                              {in.U8() < 128 ? worker_id_.value : in.U32()},
                              number};
      if (header.type == wire::LongType::kAccept && in.Flag()) header.source = server_id_;
      if (header.type == wire::LongType::kInit && in.Flag()) header.destination = server_id_;
      wire::Encode(header, out);
      if (wire::HasCookie(header.type)) wire::EncodeCookie(in.Bytes(in.Below(20)), out);
    } else {
      wire::Encode(wire::ShortHeader{kind % 2 == 1, secure_ && kind % 16 > 13, 0, destination, number}, out);
    }
    if (kind % 8 != 7 && kind % 2 == 1) {
      wire::DataHeader header;
      header.window_id = in.U8();
      header.index = in.Flag() ? in.U32() : in.U8();
      header.reliability = in.Flag() ? wire::ReliabilityClass::kLow : wire::ReliabilityClass::kHigh;
      header.repair = header.reliability == wire::ReliabilityClass::kHigh && in.Flag();
      header.last_of_window = in.Flag();
      header.generation = static_cast<uint8_t>(in.Below(2));
      header.frames_length = in.U8();
      header.part = kind % 8 == 5;
      if (header.part) header.frames_length = 0;
      wire::Encode(header, out);
      if (header.part) {
        const auto offset = static_cast<uint16_t>(wire::kPartUnit * in.U8());
        wire::Encode(wire::PartHeader{offset, in.U16()}, out);
      }
    }
    out.Bytes(in.Bytes(in.U8()));
    const size_t padding = kind % 8 == 7 ? (out.size() < 1200 ? 1200 - out.size() : 0) : 0;
    for (size_t i = 0; i < padding; ++i) out.U8(0);
    datagram.resize(out.size() + wire::kTagBytes);
    Seal(to, datagram);
    Give(to, std::move(datagram));
  }

  void Advance(Duration time) {
    const Instant target = now_ + time;
    for (int wake_ups = 0; now_ < target; ++wake_ups) {
      FUZZ_REQUIRE(wake_ups < kMaxWakeUps);
      const Instant next = std::min(sides_[0].endpoint->NextTimeout(), sides_[1].endpoint->NextTimeout());
      now_ = std::min(target, std::max(now_, next));
      for (size_t side = 0; side < 2; ++side) {
        if (sides_[side].endpoint->NextTimeout() > now_) continue;
        sides_[side].endpoint->HandleTimeout(now_);
        Poll(side);
      }
    }
  }

  codec::ReferenceCoder coder_;
  bool secure_;
  std::array<std::unique_ptr<FakeSecurity>, 2> securities_;
  bool forged_ = false;
  Instant now_ = Instant::FromNanoseconds(1'000'000'000);
  FuzzedApplication worker_;
  std::vector<std::unique_ptr<FuzzedApplication>> applications_;
  FuzzedApplication* server_ = nullptr;
  std::array<Side, 2> sides_;
  wire::ConnectionId worker_id_, server_id_;
  wire::PacketNumber next_invented_ = 1000;
  int exchanges_left_ = kMaxExchanges;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::Prepared<World> worlds;
  FuzzInput in(data, size);
  const uint8_t kind = in.U8() % 64;
  worlds.With(kind, [&in](World& world) {
    FuzzInput rest = in;
    for (int steps = 0; !rest.empty() && steps < kMaxSteps; ++steps) {
      world.Step(rest);
      FUZZ_REQUIRE(fuzz::Arena::live_bytes() < kMaxLive);
    }
    world.Silence();
    FUZZ_REQUIRE(fuzz::Arena::allocated_bytes() < kMaxAllocated);
  });
  return 0;
}
