// The packet decoder with any bytes, then three engines in virtual time with two ranks each: packets between
// them are lost, repeated, delayed, changed and invented, ranks post, cancel, query and die as the input
// says. Before that, the opener of sealed datagrams with the same bytes, and with sealed ones that they
// change. The oracle: a datagram that does not open is counted once, one that was changed does not; what
// parses packs to the same bytes; every request ends exactly once, in bounded time; memory is bounded;
// nothing stays in the pools. Sums of nodes that only honest packets reached are right.
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "offload/engine/engine.h"
#include "offload/udp/datagram_seal.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"

using namespace longhaul;           // NOLINT
using namespace longhaul::offload;  // NOLINT

namespace {

constexpr uint8_t kNodes = 3;
constexpr uint8_t kRanks = 2;
constexpr size_t kMessageBytes = 64 * 6;

void Decode(ByteSpan bytes) {
  ParseError error;
  const auto packet = Parse(bytes, &error);
  FUZZ_REQUIRE(packet.has_value() == (error == ParseError::kNone));
  if (!packet) return;
  std::vector<uint8_t> again(bytes.size());
  FUZZ_REQUIRE(Encapsulate(packet->header, packet->payload, again) == bytes.size());
  FUZZ_REQUIRE(std::equal(again.begin(), again.end(), bytes.begin()));
  if (const auto config = DecodeConfig(packet->payload)) {
    std::vector<uint8_t> encoded(kConfigBytes);
    EncodeConfig(*config, encoded);
    FUZZ_REQUIRE(std::equal(encoded.begin(), encoded.end(), packet->payload.begin(), packet->payload.end()));
  }
}

uint64_t Refused(const UdpCounters& c) {
  return c.foreign + c.unknown_senders + c.forged + c.replayed + c.old_processes + c.derivations_refused;
}

constexpr Instant kOpened = Instant::FromNanoseconds(1'000'000'000);

// Two nodes that have met.
struct Pair {
  explicit Pair(uint8_t root) {
    for (uint8_t node = 0; node < 2; ++node) {
      seals.emplace_back(SealOptions{.root = crypto::SecretBytes(std::vector<uint8_t>(32, root)),
                                     .node = node,
                                     .nodes = 0b11,
                                     .start = 1'000'000},
                         &counters[node]);
    }
    std::array<uint8_t, DatagramSeal::kHelloBytes> hello;
    uint8_t target = 0;
    FUZZ_REQUIRE(seals[1].NextHello(kOpened, &target, hello) == hello.size() && target == 0);
    FUZZ_REQUIRE(seals[0].Open(kOpened, hello).has_value());
  }

  std::array<UdpCounters, 2> counters{};
  std::vector<DatagramSeal> seals;
};

// Node 1 gets the input, then what node 0 has sealed, changed by the input. Under another key: the fuzzer
// reads what is compared, so that it learns a datagram that node 0 has sealed and sends it as its input.
void Open(ByteSpan bytes) {
  const Instant now = kOpened;
  Pair strangers(7);
  std::vector<uint8_t> copy(bytes.begin(), bytes.end());
  FUZZ_REQUIRE(!strangers.seals[1].Open(now, copy).has_value() && Refused(strangers.counters[1]) == 1);

  Pair pair(5);
  std::vector<DatagramSeal>& seals = pair.seals;
  std::vector<uint8_t> packet(bytes.begin(), bytes.end());
  packet.resize(std::max<size_t>(4, packet.size()));
  std::vector<uint8_t> datagram(packet.size() + DatagramSeal::kSealBytes);
  FUZZ_REQUIRE(seals[0].Seal(1, packet, datagram) == datagram.size());
  std::vector<uint8_t> changed = datagram;
  for (size_t i = 0; i + 1 < std::min<size_t>(bytes.size(), 8); i += 2) {
    changed[(bytes[i] * 7u) % changed.size()] ^= bytes[i + 1];
  }
  const bool same = changed == datagram;
  FUZZ_REQUIRE(seals[1].Open(now, changed).has_value() == same);
  if (same) return;
  const auto opened = seals[1].Open(now, datagram);
  FUZZ_REQUIRE(opened &&
               std::equal(packet.begin(), packet.end(), opened->packet.begin(), opened->packet.end()));
}

class Play {
 public:
  explicit Play(FuzzInput& in) {
    const uint8_t shape = in.U8();
    aggregator_ = (shape & 1) != 0;
    for (uint8_t node = 0; node < kNodes; ++node) {
      EngineOptions options;
      options.node = node;
      options.nodes = (1u << kNodes) - 1;
      options.ranks = aggregator_ && node == 2 ? 0 : (1u << kRanks) - 1;
      options.seg_bytes = 64;
      options.pool_segs = 2 * kNodes + shape / 16;
      options.window_segs = 4;
      options.queue_depth = 16;
      options.max_message_bytes = 4096;
      options.scratch_bytes = (shape & 2) != 0 ? 100 : 4096;
      engines_[node] = std::make_unique<Engine>(options);
      for (uint8_t rank = 0; rank < kRanks && options.ranks != 0; ++rank) {
        keys_[node][rank] = engines_[node]->Register(rank, memory_[node][rank]).value();
      }
    }
    JobConfig job;
    job.nodes = (1u << kNodes) - 1;
    job.route = aggregator_ || (shape & 4) != 0 ? Route::kTree : Route::kRing;
    job.root_node = 2;
    job.policy = static_cast<StragglerPolicy>(in.Below(5));
    job.skip_after = std::chrono::microseconds(30);
    job.deadline = std::chrono::milliseconds(50);
    WorkRequest config;
    config.opcode = Opcode::kConfig;
    config.config = &job;
    for (uint8_t node = 0; node < kNodes; ++node) {
      config.root_node = WorkRequest::kThisNode;
      if (HasRanks(node)) Post(node, 0, config);
    }
    config.root_node = 2;
    if (aggregator_) Post(0, 0, config);
    Settle();
  }

  void Step(FuzzInput& in) {
    const uint8_t op = in.U8();
    if (op < 90) {
      PostSome(in);
    } else if (op < 150 && !flights_.empty()) {
      Lose(in);
    } else if (op < 170) {
      Invent(in);
    } else if (op < 180) {
      const auto node = static_cast<uint8_t>(in.Below(kNodes));
      const auto rank = static_cast<uint8_t>(in.Below(kRanks));
      engines_[node]->RankGone(now_, rank);
    } else if (op < 184) {
      engines_[in.Below(kNodes)]->NodeGone(now_, static_cast<uint8_t>(in.Below(kNodes)));
    } else {
      now_ += std::chrono::microseconds(in.U16());
      Settle();
    }
    Deliver(in.Below(8));
    Check();
  }

  // Everything ends by its deadlines alone. A node is dead after 1.1 s of silence (Liveness); aborts are sent
  // again for 42 ms (Aborts). A step of 20 ms makes each of these 14 timers later by 20 ms at most: 1.4
  // s. 2.4 s are enough.
  void Finish() {
    for (int i = 0; i < 120; ++i) {
      Deliver(flights_.size());
      now_ += std::chrono::milliseconds(20);
      Settle();
    }
    flights_.clear();
    for (uint8_t node = 0; node < kNodes; ++node) {
      FUZZ_REQUIRE(engines_[node]->stats().segs_in_use == 0);
      FUZZ_REQUIRE(engines_[node]->NextTimeout().IsInfinite());
    }
    for (const auto& [name, times] : ended_) FUZZ_REQUIRE(times == 1);
    for (const auto& name : posted_) FUZZ_REQUIRE(ended_.contains(name) || IsReceive(name));
  }

 private:
  using Name = std::array<uint64_t, 3>;  // node, rank, request

  bool HasRanks(uint8_t node) const { return !aggregator_ || node != 2; }
  static bool IsReceive(const Name& name) {
    return (name[2] & 0xf) == static_cast<uint64_t>(Opcode::kReceive);
  }

  void Post(uint8_t node, uint8_t rank, WorkRequest request) {
    request.wr_id = ++number_ << 4 | (static_cast<uint64_t>(request.opcode) & 0xf);
    if (engines_[node]->Post(now_, rank, request).ok()) posted_.push_back({node, rank, request.wr_id});
    Settle();
  }

  void PostSome(FuzzInput& in) {
    const auto node = static_cast<uint8_t>(in.Below(kNodes));
    const auto rank = static_cast<uint8_t>(in.Below(kRanks));
    const uint8_t odd = in.U8();  // a request that fits, or one with something odd in it
    WorkRequest request;
    request.opcode = static_cast<Opcode>(odd < 200 ? 0 : in.Below(10));
    request.type = DataType::kInt32;
    request.mid = in.Below(4);
    request.generation = odd % 4 == 0 ? in.Below(3) : 0;
    request.nodes = (1u << kNodes) - 1;
    request.length = kMessageBytes;
    request.send.key = request.receive.key = keys_[node][rank];
    if (odd >= 100) {
      request.flags = in.Below(4) & 3;
      request.op = static_cast<ReduceOp>(in.Below(7));
      request.first_seg = in.Below(8);
      request.seg_count = in.Below(8);
      request.root_node = in.U8();
      request.root_rank = in.U8() % 70;
      if (in.Flag()) request.length = in.U16();
      if (in.Flag()) request.nodes = in.U8();
      if (in.Flag()) request.ranks = in.U8();
      if (in.Flag()) request.send.offset = in.U16();
    }
    if (request.opcode == Opcode::kConfig) request.opcode = Opcode::kQuery;
    Post(node, rank, request);
  }

  struct Flight {
    uint8_t to;
    std::vector<uint8_t> datagram;
  };

  void Lose(FuzzInput& in) {
    const size_t at = in.Below(static_cast<uint32_t>(std::min<size_t>(flights_.size(), 256)));
    const uint8_t how = in.U8();
    if (how < 60) {
      flights_.erase(flights_.begin() + static_cast<ptrdiff_t>(at));
    } else if (how < 120) {
      flights_.push_back(flights_[at]);
      kept_.push_back(flights_[at]);
    } else if (how < 160 && !kept_.empty()) {
      flights_.push_back(kept_[in.Below(static_cast<uint32_t>(std::min<size_t>(kept_.size(), 256)))]);
    } else if (how < 200) {
      std::vector<uint8_t>& datagram = flights_[at].datagram;
      datagram[in.U16() % datagram.size()] ^= in.U8();
    } else {
      Forge(flights_[at], in);
    }
  }

  // A field of a real packet becomes another, and the checksum is right.
  void Forge(Flight& flight, FuzzInput& in) {
    const auto packet = Parse(flight.datagram);
    if (!packet) return;
    Header h = packet->header;
    switch (in.Below(12)) {
      case 0:
        h.kind = static_cast<PacketKind>(in.Below(kPacketKinds));
        break;
      case 1:
        h.sid = in.U8();
        break;
      case 2:
        h.mid = in.U8() % 8;
        break;
      case 3:
        h.generation = in.U8() % 4;
        break;
      case 4:
        h.contributors = in.U8() & h.nodes;
        break;
      case 5:
        h.source = in.U8() % 8;
        break;
      case 6:
        h.root = in.U8() % 8;
        break;
      case 7:
        h.length = in.U16();
        break;
      case 8:
        h.op = static_cast<ReduceOp>(in.Below(6));
        break;
      case 9:
        h.status = static_cast<WorkStatus>(in.Below(13));
        break;
      case 10:
        h.participants = in.U32();
        break;
      default:
        h.opcode = static_cast<Opcode>(in.Below(9));
        break;
    }
    std::vector<uint8_t> forged(flight.datagram.size());
    if (Encapsulate(h, packet->payload, forged) > 0) flight.datagram = forged;
  }

  void Invent(FuzzInput& in) {
    const ByteSpan bytes = in.Bytes(in.U8());
    Flight flight{static_cast<uint8_t>(in.Below(kNodes)), {bytes.begin(), bytes.end()}};
    const auto verdict = engines_[flight.to]->HandlePacket(now_, flight.datagram);
    FUZZ_REQUIRE(Parse(flight.datagram).has_value() == (verdict == Engine::Verdict::kTaken));
  }

  void Deliver(size_t count) {
    for (; count > 0 && !flights_.empty(); --count) {
      const Flight flight = std::move(flights_.front());
      flights_.pop_front();
      engines_[flight.to]->HandlePacket(now_, flight.datagram);
      Settle();
    }
  }

  void Settle() {
    std::array<uint8_t, kHeaderBytes + 64> datagram;
    for (uint8_t node = 0; node < kNodes; ++node) {
      Engine& engine = *engines_[node];
      engine.HandleTimeout(now_);
      while (engine.Advance(now_, 4096)) {
      }
      while (const auto out = engine.PollTransmit(now_, datagram)) {
        FUZZ_REQUIRE(out->target != node && out->bytes <= datagram.size());
        if (out->target >= kNodes || flights_.size() > 300) continue;
        flights_.push_back(
            {out->target, {datagram.begin(), datagram.begin() + static_cast<ptrdiff_t>(out->bytes)}});
      }
      Completion completion;
      for (uint8_t rank = 0; rank < kRanks; ++rank) {
        while (engine.Poll(rank, {&completion, 1}) > 0) {
          ++ended_[{node, rank, completion.wr_id}];
          FUZZ_REQUIRE(completion.segs_done <= completion.segs_total);
          FUZZ_REQUIRE(completion.status <= WorkStatus::kPartial);
        }
      }
    }
  }

  void Check() {
    for (const auto& engine : engines_) {
      const OffloadStats stats = engine->stats();
      FUZZ_REQUIRE(stats.segs_in_use <= engine->options().pool_segs);
      FUZZ_REQUIRE(stats.completions <= stats.requests);
    }
  }

  bool aggregator_ = false;
  Instant now_ = Instant::FromNanoseconds(1'000'000);
  std::array<std::unique_ptr<Engine>, kNodes> engines_;
  std::array<std::array<std::array<std::byte, kMessageBytes>, kRanks>, kNodes> memory_{};
  std::array<std::array<uint32_t, kRanks>, kNodes> keys_{};
  std::deque<Flight> flights_;
  std::vector<Flight> kept_;
  std::vector<Name> posted_;
  std::map<Name, int> ended_;
  uint64_t number_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Decode({data, size});
  if (size < 9000) Open({data, size});
  if (size < 3) return 0;
  FuzzInput in(data, size);
  Play play(in);
  for (int steps = 0; !in.empty() && steps < 200; ++steps) play.Step(in);
  play.Finish();
  return 0;
}
