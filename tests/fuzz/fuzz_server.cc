// A whole server from bytes, in virtual time: an honest worker trains (a real WorkerCore), another member of
// the job says and sends what the input tells it, and so does a stranger who never joins: control messages,
// whole pushes with any weight, round and value, windows with metadata and chunks of all kinds, closes,
// datagrams changed on their way with a tag that fits, time that passes. Of most kinds of jobs the members
// are in already and have done a round (arena.h).
//
// Holds: nothing aborts; what an input allocates, and what of it stays, is within what one small job may
// cost; the honest worker's requests each end once, and when its job ends it gets the reason; what it gets is
// its own values and the member's, of which the member has no more than its share, whatever it weighs; after
// a shutdown the server is empty.
#include <google/protobuf/stubs/logging.h>

#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "bench/load/sink.h"
#include "codec/chunk/chunk.h"
#include "codec/chunk/window_metadata.h"
#include "longhaul/plugin_api.h"
#include "proto/control_codec.h"
#include "proto/packet_header.h"
#include "server/server_core.h"
#include "tests/fuzz/arena.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"
#include "tests/fuzz/values.h"
#include "tests/sim/reference_coder.h"
#include "tests/transport/application.h"
#include "transport/core/security/integrity_tag.h"
#include "worker/client/worker_core.h"

using namespace longhaul;             // NOLINT
using namespace longhaul::transport;  // NOLINT

namespace {

using control::ControlMessage;
using Bytes = std::vector<uint8_t>;
using fuzz::Buffer;

constexpr size_t kMaxQueued = 300;
constexpr int kMaxPolls = 5000;
constexpr int kMaxWakeUps = 50000;
constexpr ByteCount kMaxModel{256 << 10};
// The job's model several times over (values, sums, optimizer, results under way), buffered packets of every
// connection, and both workers of the test itself.
constexpr size_t kMaxMemory = 16 << 20;
// What comes and goes in an input: datagrams, messages, chunks.
constexpr uint64_t kMaxAllocated = 256 << 20;
constexpr uint64_t kCount = 500;  // elements of the honest worker's tensor: two chunks
// What is found in many steps is found in a few, sooner.
constexpr int kMaxSteps = 16;
// Of Run, in all steps: they are most of an input's time.
constexpr uint32_t kMaxRounds = 12;
constexpr uint64_t kRounds = 6;  // pushes of the honest worker
constexpr float kGradient = 0.25f;
// Of two members, of whatever weights: 3 / (n + 2) (server/member/membership.h).
constexpr float kMaxShare = 0.75f;

const Address kServer = Address::V4(10, 0, 0, 1, 7700);

// A plug-in whose optimizer and aggregation now and then fail, as the values would have it.
constexpr longhaul_setting kSettings[] = {{"lr", "0.1", 0, 0, LONGHAUL_SETTING_REQUIRED},
                                          {"decay", "0.5", 0, 1, 0}};
constexpr const char* kArrays[] = {"mean", "square"};
constexpr longhaul_optimizer kOptimizer = {
    .name = "of_plugin",
    .settings = kSettings,
    .setting_count = std::size(kSettings),
    .state = kArrays,
    .state_count = std::size(kArrays),
    .flags = LONGHAUL_OPTIMIZER_PARTS,
    .states = [](const double* settings) { return settings[1] > 0 ? 2u : 1u; },
    .check = [](const double* settings) { return settings[0] > 100 ? "lr is too large" : nullptr; },
    .prepare = [](const longhaul_step* step,
                  double* prepared) { prepared[0] = step->settings[0] * step->share; },
    .step =
        [](const longhaul_step* step) {
          for (uint64_t i = 0; i < step->count; ++i) {
            if (step->gradient[i] == 100) return int32_t{7};
            step->updated[i] = step->values[i] - static_cast<float>(step->prepared[0]) * step->gradient[i];
            step->new_state[0][i] = step->state[0][i] + step->gradient[i];
            if (step->settings[1] > 0) step->new_state[1][i] = step->gradient[i] * step->gradient[i];
          }
          return int32_t{0};
        }};
constexpr longhaul_aggregation kAggregation = {
    .name = "of_plugin",
    .scratch = [](uint64_t count, uint32_t, uint32_t) { return count * sizeof(double); },
    .aggregate =
        [](const longhaul_contributions* in, float* out) {
          auto* const sum = static_cast<double*>(in->scratch);
          double weights = 0;
          for (uint64_t i = 0; i < in->count; ++i) sum[i] = 0;
          for (uint32_t from = 0; from < in->contributors; ++from) {
            weights += in->weights[from];
            for (uint64_t i = 0; i < in->count; ++i)
              sum[i] += double{in->weights[from]} * in->values[from][i];
          }
          for (uint64_t i = 0; i < in->count; ++i) out[i] = static_cast<float>(sum[i] / weights);
          return in->values[0][0] == -1 ? int32_t{3} : int32_t{0};
        }};
constexpr const longhaul_optimizer* kRules[] = {&kOptimizer};
constexpr const longhaul_aggregation* kAggregations[] = {&kAggregation};
constexpr longhaul_plugin kPlugin = {LONGHAUL_PLUGIN_API, 1, kRules, 1, kAggregations};

// Numbers that are usual, at a bound, or anything.
uint64_t Number(FuzzInput& in) {
  switch (in.Below(6)) {
    case 0:
      return in.U8();
    case 1:
      return in.U32();
    case 2:
      return uint64_t{in.U32()} << 32 | in.U32();
    case 3:
      return uint64_t{1} << in.Below(64);
    case 4:
      return kCount;
    default:
      return in.Below(4);
  }
}

float Real(FuzzInput& in) {
  constexpr float kReals[] = {0,
                              1,
                              -1,
                              0.5f,
                              1e-30f,
                              1e30f,
                              3e38f,
                              std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN(),
                              1e-45f,
                              -3e38f,
                              100};
  return kReals[in.Below(std::size(kReals))];
}

std::string Name(FuzzInput& in) {
  constexpr const char* kNames[] = {"w", "x", "y", "default", ""};
  return fuzz::AnyText(in, kNames, 8);
}

std::string Optimizer(FuzzInput& in) {
  constexpr const char* kOptimizers[] = {"aggregate",
                                         "sgd:lr=0.1,momentum=0.9",
                                         "adam:lr=0.001",
                                         "adamw:lr=1e30,eps=1e-30",
                                         "sgd:lr=1e308",
                                         "of_plugin:lr=0.5",
                                         "of_plugin:lr=1e30,decay=0.5"};
  const uint32_t which = in.Below(8);
  return which < std::size(kOptimizers) ? kOptimizers[which] : Name(in);
}

void FillJoin(FuzzInput& in, control::Join& join) {
  join.set_job(in.U8() < 230 ? "default" : Name(in));
  join.set_rank(in.U8() < 200 ? 1 : static_cast<uint32_t>(Number(in)));
  join.set_world_size(in.U8() < 230 ? 2 : static_cast<uint32_t>(Number(in)));
  join.set_incarnation(in.U8());
  join.set_site(Name(in));
  join.set_weight(in.U8() < 200 ? 1 : Real(in));
}

void FillDeclare(FuzzInput& in, control::Declare& declare) {
  declare.set_request(in.U8());
  declare.set_name(Name(in));
  declare.set_dtype(in.U8() < 230 ? 1 : in.U8());
  declare.set_count(in.U8() < 128 ? kCount : Number(in));
  declare.set_optimizer(Optimizer(in));
  declare.set_has_initial(in.Flag());
  declare.set_wire_dtype(in.Below(8));
  declare.set_result_dtype(in.Below(6));
  if (in.U8() < 40)
    declare.set_topk_share(in.U8() < 200 ? 1.0 / (1 + in.U8()) : static_cast<double>(Real(in)));
  declare.set_priority(static_cast<int32_t>(in.U8()) - 128);
}

void FillServerJoin(FuzzInput& in, control::ServerJoin& join) {
  join.set_job(in.Flag() ? "default" : Name(in));
  join.set_address(Name(in));
  join.set_map_epoch(Number(in));
  join.set_server(in.U8());
  join.set_servers(in.U8());
  join.set_start(Number(in));
}

ControlMessage Message(FuzzInput& in, uint32_t tensor) {
  ControlMessage message;
  switch (in.Below(9)) {
    case 0:
      FillJoin(in, *message.mutable_join());
      break;
    case 1:
    case 2:
      FillDeclare(in, *message.mutable_declare());
      break;
    case 3:
      message.mutable_pull_request()->set_request(in.U8());
      message.mutable_pull_request()->set_key(in.U8() < 128 ? tensor : static_cast<uint32_t>(Number(in)));
      message.mutable_pull_request()->set_min_round(Number(in));
      break;
    case 4:
      message.mutable_barrier()->set_request(in.U8());
      message.mutable_barrier()->set_name(Name(in));
      break;
    case 5:
      message.mutable_status_request()->set_request(in.U8());
      break;
    case 6:
      message.mutable_bench_join()->set_site(Name(in));
      break;
    case 7:
      message.mutable_leave()->set_code(in.U8());
      message.mutable_leave()->set_message(Name(in));
      break;
    default:  // what only servers say
      if (in.Flag()) return FillServerJoin(in, *message.mutable_server_join()), message;
      message.mutable_welcome()->mutable_job_spec()->set_fec_k(in.U8());
  }
  return message;
}

Bytes Framed(const ControlMessage& message) {
  const std::string body = message.SerializeAsString();
  Bytes bytes(body.size() + 8);
  ByteWriter out(bytes);
  out.U32(static_cast<uint32_t>(body.size()) | 0x80000000u);  // a varint of four bytes
  out.Bytes({reinterpret_cast<const uint8_t*>(body.data()), body.size()});
  bytes.resize(out.size());
  return bytes;
}

// A client of the transport that does what the input says.
class Hostile final : public Application {
 public:
  Hostile(Address own, codec::ErasureCoder* coder, uint64_t seed) : address(own) {
    EndpointOptions options;
    options.coder = coder;
    endpoint = std::make_unique<PumpedEndpoint>(options, Random(seed));
  }

  void OnClosed(Connection& closed, const Status& why) override {
    FUZZ_REQUIRE(!why.ToString().empty());
    if (connection == &closed) connection = nullptr;
  }
  void OnControlData(Connection&, ByteSpan bytes) override {
    const auto messages = reader_.Append(bytes);
    FUZZ_REQUIRE(messages.ok());  // what the server says is valid
    for (const ControlMessage& message : *messages) {
      if (message.has_declared() && message.declared().code() == 0) {
        has_tensor = true;
        tensor_ = message.declared().key();
        round_ = message.declared().next_round();
      }
      if (message.has_round_report()) round_ = message.round_report().round() + 1;
    }
  }
  Status OnWindowOpened(Connection&, WindowKey key, const wire::WindowOpenFrame&) override {
    last_incoming_ = key;
    return {};
  }
  ChunkVerdict OnChunk(Connection&, const event::Chunk& chunk) override {
    return chunk.sequence % 4 == 3 ? ChunkVerdict::kRefused : ChunkVerdict::kTaken;
  }
  void OnWindowState(Connection& c, const event::WindowState& state) override {
    if (state.window.complete && takes_results) c.CloseWindow(state.key, wire::CloseReason::kComplete);
  }

  void Connect(Instant now) { connection = endpoint->Connect(now, kServer, this); }

  void Act(FuzzInput& in, Instant now) {
    if (connection == nullptr) {
      reader_ = {};
      Connect(now);
      return;
    }
    Connection& c = *connection;
    switch (in.Below(14)) {
      case 0:
      case 1:
      case 2:
        (void)c.SendControl(Framed(Message(in, tensor_)));
        break;
      case 3:  // bytes without an order
        (void)c.SendControl(in.Bytes(in.U8()));
        break;
      case 4:
        Join(in.U8());
        break;
      case 5:
      case 6:
        OpenWindow(c, in);
        break;
      case 7:
        for (uint32_t chunks = in.Below(40); chunks > 0; --chunks) SubmitChunk(c, in);
        break;
      case 8:
        takes_results = in.Flag();
        c.CloseWindow(last_incoming_, static_cast<wire::CloseReason>(in.Below(6)));
        break;
      case 9:
        c.RequestMissing(last_incoming_);
        c.Grant(Bandwidth::Mbps(in.U8()), ByteCount(in.U16()));
        break;
      case 10:
        c.CancelWindow(window_.key);
        break;
      case 11:
      case 12:
        Push(in.U8() < 200 ? round_ : Number(in), Weight(in), Real(in), in.Flag());
        break;
      default:
        if (in.U8() > 200) c.Close(Status(StatusCode::kAborted, "enough"));
    }
  }

  // A member, as it should be.
  void Join(uint8_t incarnation) {
    ControlMessage join;
    join.mutable_join()->set_job("default");
    join.mutable_join()->set_rank(1);
    join.mutable_join()->set_world_size(2);
    join.mutable_join()->set_incarnation(incarnation);
    join.mutable_join()->set_weight(1);
    ControlMessage declare;
    declare.mutable_declare()->set_name("w");
    declare.mutable_declare()->set_count(kCount);
    declare.mutable_declare()->set_optimizer(Spec());
    (void)connection->SendControl(Framed(join));
    (void)connection->SendControl(Framed(declare));
  }

  // All of a gradient, every value the same.
  void Push(uint64_t round, float weight, float value, bool wants_result) {
    Connection& c = *connection;
    codec::WindowMetadata metadata;
    metadata.wants_result = wants_result;
    metadata.key = tensor_;
    metadata.round = round;
    metadata.count = kCount;
    metadata.chunk_elements = codec::ChunkElementsFor(static_cast<uint16_t>(c.MaxChunkBytes()));
    metadata.weight = weight;
    const codec::ChunkGeometry geometry{kCount, metadata.chunk_elements};
    Begin(metadata, geometry.chunks(), 0);
    if (!c.OpenWindow(window_).ok()) return;
    for (uint32_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
      Submit(c, wire::ReliabilityClass::kHigh, Chunk(chunk, geometry.Length(chunk), value));
    }
  }

  const char* Spec() const { return lossy ? "sgd:lr=0.1" : "aggregate"; }

  Address address;
  std::unique_ptr<PumpedEndpoint> endpoint;
  Connection* connection = nullptr;
  bool takes_results = true;
  bool lossy = false;
  float largest = 0;      // magnitude that it has sent in a chunk as it should be
  bool anything = false;  // it has sent chunks of any content
  bool has_tensor = false;

 private:
  static float Weight(FuzzInput& in) {
    constexpr float kWeights[] = {1, 1, 1e9f, 1e-6f, 1e5f, 0, -1, std::numeric_limits<float>::quiet_NaN()};
    return kWeights[in.Below(std::size(kWeights))];
  }

  void Begin(const codec::WindowMetadata& metadata, uint32_t high, uint32_t low) {
    window_ = {};
    window_.key = {++next_window_, 0};
    window_.high_count = high;
    window_.low_count = low;
    window_.symbol_bytes = static_cast<uint16_t>(connection->MaxChunkBytes());
    window_.fec_depth = 1;
    window_.metadata = codec::EncodeWindowMetadata(metadata);
    elements_ = metadata.chunk_elements;
  }

  Bytes Chunk(uint32_t index, uint32_t count, float value) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    const auto header = codec::EncodeDenseHeader(index, count);
    Bytes chunk(header.begin(), header.end());
    const std::vector<float> values(count, value);
    const auto* raw = reinterpret_cast<const uint8_t*>(values.data());
    chunk.insert(chunk.end(), raw, raw + values.size() * sizeof(float));
    return chunk;
  }

  void Submit(Connection& c, wire::ReliabilityClass reliability, Bytes chunk) {
    if (chunk.empty() || bodies_.size() > 500) return;
    bodies_.push_back(std::move(chunk));  // borrowed until the window is closed
    (void)c.SubmitChunk(window_.key, reliability, {}, bodies_.back());
  }

  // Large windows are few: this sender's own memory of one is 5 MB.
  uint32_t Chunks(FuzzInput& in) {
    if (in.U8() < 200 || large_ == 2) return in.Below(4);
    ++large_;
    return in.U16();
  }

  void OpenWindow(Connection& c, FuzzInput& in) {
    codec::WindowMetadata metadata;
    metadata.kind = static_cast<codec::WindowKind>(in.U8() < 200 ? 0 : in.Below(4));
    metadata.wants_result = in.Flag();
    metadata.key = in.U8() < 200 ? tensor_ : static_cast<uint32_t>(Number(in));
    metadata.round = in.U8() < 200 ? round_ + in.Below(3) : Number(in);
    metadata.count = in.U8() < 200 ? kCount : Number(in);
    const uint32_t fitting = static_cast<uint32_t>((c.MaxChunkBytes() - codec::kChunkHeaderBytes) / 4);
    metadata.chunk_elements = in.U8() < 200 ? fitting : static_cast<uint32_t>(Number(in));
    metadata.weight = in.U8() < 200 ? 1 : Real(in);
    metadata.total_low_energy = in.U8() < 128 ? 1 : Real(in);
    metadata.shift_epoch = in.Below(3);
    window_ = {};
    window_.key = {++next_window_, static_cast<uint8_t>(in.Below(2))};
    window_.high_count = Chunks(in);
    window_.low_count = Chunks(in);
    window_.symbol_bytes = static_cast<uint16_t>(in.U8() < 200 ? c.MaxChunkBytes() : 16 * (1 + in.Below(80)));
    window_.fec_k = in.Flag() ? 8 : 0;
    window_.fec_depth = 1;
    window_.metadata = codec::EncodeWindowMetadata(metadata);
    if (in.U8() > 230) {
      const ByteSpan raw = in.Bytes(in.Below(70));
      window_.metadata.assign(raw.begin(), raw.end());
    }
    elements_ = std::min<uint32_t>(fitting, window_.symbol_bytes / 4u);
    (void)c.OpenWindow(window_);
  }

  void SubmitChunk(Connection& c, FuzzInput& in) {
    const auto reliability = in.Flag() ? wire::ReliabilityClass::kLow : wire::ReliabilityClass::kHigh;
    Bytes chunk;
    if (in.U8() < 200) {
      const uint32_t index = in.U8() < 200 ? in.Below(4) : in.U32();
      const uint64_t begin = uint64_t{index} * elements_;
      const uint64_t rest = begin < kCount ? kCount - begin : kCount;
      const uint32_t count =
          static_cast<uint32_t>(std::min<uint64_t>(elements_, in.U8() < 200 ? rest : in.U8()));
      chunk = Chunk(index, count, Real(in));
      if (in.U8() > 220) {
        anything = true;
        chunk[in.U8() % chunk.size()] = in.U8();
      }
    } else {
      anything = true;
      const ByteSpan raw = in.Bytes(in.U8());
      chunk.assign(raw.begin(), raw.end());
    }
    chunk.resize(std::min<size_t>(chunk.size(), window_.symbol_bytes));
    Submit(c, reliability, std::move(chunk));
  }

  wire::ControlReader reader_;
  WindowKey last_incoming_;
  WindowOptions window_;
  uint32_t tensor_ = 0;  // as the server has named it
  uint64_t round_ = 0;   // the next one
  uint32_t elements_ = 0;
  uint32_t next_window_ = 0;
  uint32_t large_ = 0;
  std::deque<Bytes> bodies_;
};

// Joins as rank 0, declares one tensor, and pushes and pulls for as long as the job lasts.
class Honest {
 public:
  Honest(codec::ErasureCoder* coder, bool lossy) : core(Options(), coder, Random(5)), lossy_(lossy) {}

  void Start(Instant now) {
    core.Start(now, kServer);
    ++begun_;
    worker::Declaration declaration;
    declaration.name = "w";
    declaration.count = kCount;
    declaration.optimizer = lossy_ ? "sgd:lr=0.1" : "aggregate";
    declaration.high_share = 1;  // all of it arrives
    declaration.initial = gradient_;
    if (!lossy_) declaration.initial = {};
    core.Declare(declaration, [this](const Result<worker::TensorHandle>& handle) {
      ++ended;
      if (handle.ok()) Round(*handle);
    });
  }
  // Nothing that was asked for is still open.
  void CheckEnded() const {
    FUZZ_REQUIRE(core.ended() && begun_ == ended);
    if (core.state() == worker::WorkerCore::State::kFailed) {
      FUZZ_REQUIRE(!core.failure().ok() && !core.failure().message().empty());
    }
  }

  const Address address = Address::V4(10, 0, 0, 2, 7000);
  worker::WorkerCore core;
  uint64_t ended = 0;
  // What every round's result may be at most; none: anything.
  std::optional<float> largest_result;

 private:
  static worker::WorkerCoreOptions Options() {
    worker::WorkerCoreOptions options;
    options.world_size = 2;
    return options;
  }
  void Round(worker::TensorHandle tensor) {
    if (begun_ > kRounds) return;
    ++begun_;
    core.PushPull(tensor, gradient_, out_, [this, tensor](const Status& outcome, const OperationStats&) {
      ++ended;
      if (!outcome.ok()) return;
      for (const float value : out_) FUZZ_REQUIRE(!largest_result || std::abs(value) <= *largest_result);
      Round(tensor);
    });
  }

  bool lossy_;
  uint64_t begun_ = 0;
  std::vector<float> gradient_ = std::vector<float>(kCount, kGradient);
  std::vector<float> out_ = std::vector<float>(kCount);
};

class World {
 public:
  explicit World(uint8_t kind)
      : lossy_((kind & 1) != 0),
        modelled_(IsModelled(kind)),
        sink_({.max_connections = 2, .during_job = (kind & 0x20) != 0}, {}),
        core_(Options(kind, &sink_), &coder_, Random(7)),
        honest_(&coder_, lossy_),
        insider_(Address::V4(10, 0, 0, 3, 7000), &coder_, 11),
        stranger_(Address::V4(10, 0, 0, 4, 7000), &coder_, 12) {
    insider_.lossy = lossy_;
    honest_.Start(now_);
    insider_.Connect(now_);
    stranger_.Connect(now_);
    Run(0, 4);
    if (PolicyOf(kind) >= kNamesOf<LossPolicy>.size()) return;  // the member may join as it likes
    insider_.Join(1);
    for (int rounds = 0; rounds < 40 && !insider_.has_tensor; ++rounds) Run(0, 1);
    FUZZ_REQUIRE(insider_.has_tensor);
    insider_.Push(0, 1, kGradient, true);
    for (int rounds = 0; rounds < 40 && honest_.ended < 2; ++rounds) Run(0, 1);
    FUZZ_REQUIRE(honest_.ended == 2);  // the declaration, and the first round
  }

  void Step(FuzzInput& in) {
    const uint8_t op = in.U8();
    Hostile& who = (op & 0x40) != 0 ? stranger_ : insider_;
    switch (op & 7) {
      case 0: {
        const uint8_t losses = in.U8();
        const uint32_t rounds = std::min(1 + in.Below(8), rounds_left_);
        rounds_left_ -= rounds;
        Run(losses, rounds);
        break;
      }
      case 1:
        Advance(std::chrono::milliseconds(in.U16() % 4000));
        break;
      case 2:
        Corrupt(who, in);
        break;
      default:
        who.Act(in, now_);
        Expect();
        PollOne(*who.endpoint, who.address);
    }
    FUZZ_REQUIRE(fuzz::Arena::live_bytes() < kMaxMemory);
  }

  void Finish() {
    Run(0, 4);
    (void)core_.stats();
    core_.Shutdown(now_, Status());
    for (int i = 0; i < 1200 && !core_.Drained(); ++i) Run(0, 1);
    FUZZ_REQUIRE(core_.Drained());
    for (int i = 0; i < 6000 && !honest_.core.ended(); ++i) Run(0, 1);
    honest_.CheckEnded();
    FUZZ_REQUIRE(fuzz::Arena::allocated_bytes() < kMaxAllocated);
  }

 private:
  struct Datagram {
    Address from, to;
    Bytes bytes;
  };

  static uint8_t PolicyOf(uint8_t kind) { return kind >> 2 & 7; }
  // Nothing of what the member does changes what of its own the honest worker gets.
  static bool IsModelled(uint8_t kind) {
    const uint8_t policy = PolicyOf(kind) % kNamesOf<LossPolicy>.size();
    const bool forgets = policy == static_cast<uint8_t>(LossPolicy::kZero) ||
                         policy == static_cast<uint8_t>(LossPolicy::kCount);
    return forgets && (kind & 0x21) == 0;  // no optimizer, and no round without the honest one
  }
  // The mean is between the two, and the member's part of it is its share at most.
  void Expect() {
    const bool known = modelled_ && !insider_.anything && !stranger_.anything;
    const float theirs = std::max({insider_.largest, stranger_.largest, kGradient});
    honest_.largest_result.reset();
    if (known) honest_.largest_result = (kGradient + kMaxShare * (theirs - kGradient)) * 1.0001f;
  }

  static server::ServerCoreOptions Options(uint8_t kind, server::Guests* guests) {
    server::ServerCoreOptions options;
    options.guests = guests;
    server::ServerSettings& s = options.settings;
    s.world_size = 2;
    s.min_workers = (kind & 2) != 0 ? 1 : 2;
    s.downlink = (kind & 1) != 0 ? Downlink::kLossy : Downlink::kReliable;
    s.hash_rounds = 2;
    s.policy = static_cast<LossPolicy>(PolicyOf(kind) % kNamesOf<LossPolicy>.size());
    s.max_model = kMaxModel;
    s.fec_k = 8;
    s.idle_timeout = std::chrono::seconds(2);
    s.norm_guard = (kind & 0x40) != 0 ? 10 : 0;
    s.deterministic = (kind & 0x80) != 0;
    if ((kind & 0x20) != 0) s.round_bound = std::chrono::milliseconds(500);
    FUZZ_REQUIRE(s.rules.Add(&kPlugin).ok());
    if (PolicyOf(kind) >= kNamesOf<LossPolicy>.size()) {
      s.aggregation = Aggregation::kPlugin;
      s.aggregation_rule = s.rules.FindAggregation("of_plugin");
    }
    FUZZ_REQUIRE(options.Validate().ok());
    return options;
  }

  void PollOne(DatagramCore& from, const Address& address) {
    while (from.HasWork()) from.Work(now_);
    for (int polls = 0;; ++polls) {
      FUZZ_REQUIRE(polls < kMaxPolls);
      const auto transmit = from.PollTransmit(now_, Buffer());
      if (!transmit) return;
      for (size_t at = 0; at < transmit->size; at += transmit->segment_bytes) {
        const size_t size = std::min(transmit->segment_bytes, transmit->size - at);
        if (queue_.size() < kMaxQueued)
          queue_.push_back(
              {address, transmit->destination, {Buffer().begin() + at, Buffer().begin() + at + size}});
      }
    }
  }

  // Of which only one knows that something has happened.
  std::array<std::pair<DatagramCore*, Address>, 4> Cores() {
    return {{{&core_, kServer},
             {&honest_.core, honest_.address},
             {insider_.endpoint.get(), insider_.address},
             {stranger_.endpoint.get(), stranger_.address}}};
  }

  void Poll() {
    for (const auto& [core, address] : Cores()) PollOne(*core, address);
  }

  void Give(Datagram datagram) {
    for (const auto& [core, address] : Cores()) {
      if (datagram.to != address) continue;
      core->HandleDatagram(now_, datagram.from, datagram.bytes, {});
      PollOne(*core, address);
    }
  }

  // Rounds of 5 ms in which everything arrives, but for what a pattern of losses takes from the hostile ones.
  void Run(uint8_t losses, uint32_t rounds) {
    int number = 0;
    Poll();
    for (; rounds > 0; --rounds) {
      for (size_t count = queue_.size(); count > 0; --count) {
        Datagram datagram = std::move(queue_.front());
        queue_.pop_front();
        const bool honest = datagram.from == honest_.address || datagram.to == honest_.address;
        if (honest || (losses >> number++ % 8 & 1) == 0) Give(std::move(datagram));
      }
      Advance(std::chrono::milliseconds(5));
    }
  }

  void Advance(Duration time) {
    const Instant target = now_ + time;
    const auto cores = Cores();
    for (int wake_ups = 0; now_ < target; ++wake_ups) {
      FUZZ_REQUIRE(wake_ups < kMaxWakeUps);
      Instant next = target;
      for (const auto& [core, address] : cores) next = std::min(next, core->NextTimeout());
      now_ = std::max(now_, next);
      for (const auto& [core, address] : cores) {
        if (core->NextTimeout() > now_) continue;
        core->HandleTimeout(now_);
        PollOne(*core, address);
      }
    }
  }

  // The next datagram of a hostile peer is another one, with a tag that fits.
  void Corrupt(Hostile& who, FuzzInput& in) {
    const auto found = std::ranges::find_if(queue_, [&](const Datagram& d) { return d.from == who.address; });
    if (found == queue_.end()) return;
    who.anything = true;
    Expect();
    Datagram datagram = std::move(*found);
    queue_.erase(found);
    Bytes& bytes = datagram.bytes;
    // Not the connection IDs: what names another connection is that one's own affair.
    for (uint32_t changes = 1 + in.Below(4); changes > 0; --changes) {
      const size_t at = wire::kShortHeaderBytes + (in.U8() < 200 ? in.Below(80) : in.U16());
      if (at < bytes.size()) bytes[at] = in.U8();
    }
    if (in.U8() > 200) bytes.resize(std::max<size_t>(40, in.U16() % (bytes.size() + 1)));
    Seal(bytes);
    Give(std::move(datagram));
  }

  static void Seal(Bytes& datagram) {
    if (wire::IsLongHeader(datagram)) return;
    ByteReader reader(datagram);
    const auto decoded = wire::DecodeShortHeader(reader);
    if (!decoded) return;
    if (decoded->has_data) reader.Bytes(wire::kDataHeaderBytes);
    const size_t header = reader.position();
    if (!reader.ok() || datagram.size() < header + wire::kTagBytes) return;
    const MutableByteSpan all(datagram);
    IntegrityTag().Seal(decoded->packet_number, 0, all.first(header),
                        all.subspan(header, all.size() - header - wire::kTagBytes),
                        all.last(wire::kTagBytes));
  }

  bool lossy_;
  const bool modelled_;
  uint32_t rounds_left_ = kMaxRounds;
  codec::ReferenceCoder coder_;
  Instant now_ = Instant::FromNanoseconds(1'000'000'000);
  load::Sink sink_;
  server::ServerCore core_;
  Honest honest_;
  Hostile insider_, stranger_;
  std::deque<Datagram> queue_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The hostile ones' names need not be UTF-8, and protobuf would say so every time.
  static const auto quiet = google::protobuf::SetLogHandler(nullptr);
  (void)quiet;
  static fuzz::Prepared<World> worlds;
  FuzzInput in(data, size);
  const uint8_t kind = in.U8();
  worlds.With(kind, [&in](World& world) {
    FuzzInput rest = in;
    for (int steps = 0; !rest.empty() && steps < kMaxSteps; ++steps) world.Step(rest);
    world.Finish();
  });
  return 0;
}
