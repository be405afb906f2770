// A program that uses the public API in any order with any arguments: a server that lives for all inputs and
// a client of it, over the loopback, with unknown enumerations, NaN, spans that overlap or have no memory,
// names of any bytes, waits in callbacks, callbacks that throw, objects that were moved from, clients that
// are destroyed in their own callbacks and while other threads wait.
//
// Holds: nothing ends the process; every call returns, and every operation has ended once its client is gone,
// Ok or with a reason in words.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "longhaul/client.h"
#include "longhaul/server.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/property.h"
#include "tests/fuzz/values.h"

using namespace longhaul;  // NOLINT

namespace {

constexpr uint64_t kCount = 200;
constexpr int kMaxSteps = 40;
// "In the end", on a busy machine; below the -timeout of run.sh, which would say less.
constexpr Duration kInTheEnd = std::chrono::seconds(15);

uint64_t Number(FuzzInput& in) {
  switch (in.Below(5)) {
    case 0:
      return kCount;
    case 1:
      return in.U8();
    case 2:
      return uint64_t{1} << in.Below(64);
    case 3:
      return ~uint64_t{in.U8()};
    default:
      return uint64_t{in.U32()} << 32 | in.U32();
  }
}

double Real(FuzzInput& in) {
  constexpr double kReals[] = {0,
                               1,
                               -1,
                               0.5,
                               1e-300,
                               1e300,
                               3e38,
                               std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()};
  return kReals[in.Below(std::size(kReals))];
}

float Value(FuzzInput& in) {
  constexpr float kValues[] = {1,
                               0,
                               -1,
                               3e38f,
                               1e-45f,
                               1e36f,
                               std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()};
  return kValues[in.Below(std::size(kValues))];
}

Duration Time(FuzzInput& in) {
  constexpr int64_t kTimes[] = {0,
                                1,
                                -1,
                                1'000'000,
                                1'000'000'000,
                                std::numeric_limits<int64_t>::max(),
                                std::numeric_limits<int64_t>::min()};
  return Duration(kTimes[in.Below(std::size(kTimes))]);
}

std::string Text(FuzzInput& in) {
  constexpr const char* kTexts[] = {"w",         "x",          "default",     "",
                                    "aggregate", "sgd:lr=0.1", "127.0.0.1:0", "drop=0.1"};
  return fuzz::AnyText(in, kTexts, 12);
}

// Mostly as it is.
template <typename T, typename Make>
void Change(FuzzInput& in, T* value, Make make) {
  if (in.U8() > 215) *value = make();
}
template <typename E>
void ChangeEnum(FuzzInput& in, E* value) {
  if (in.U8() > 215) *value = static_cast<E>(in.U8());
}

void CheckWords(const Status& status) {
  FUZZ_REQUIRE(StatusCodeName(status.code()) != "Unknown");
  FUZZ_REQUIRE(status.ok() || !status.message().empty());
}

JobSpec AnyJob(FuzzInput& in) {
  JobSpec spec;
  ChangeEnum(in, &spec.policy);
  ChangeEnum(in, &spec.priority);
  ChangeEnum(in, &spec.downlink);
  for (double JobSpec::*field :
       {&JobSpec::shift_alpha, &JobSpec::high_share, &JobSpec::high_energy, &JobSpec::lost_energy,
        &JobSpec::topk_share, &JobSpec::bubble_threshold, &JobSpec::close_ratio, &JobSpec::straggler_factor,
        &JobSpec::norm_guard, &JobSpec::max_weight_share}) {
    Change(in, &(spec.*field), [&] { return Real(in); });
  }
  Change(in, &spec.hash_rounds, [&] { return static_cast<uint32_t>(Number(in)); });
  Change(in, &spec.fec_k, [&] { return in.U8(); });
  Change(in, &spec.fec_depth, [&] { return in.U8(); });
  Change(in, &spec.round_bound, [&] { return Time(in); });
  Change(in, &spec.idle_timeout, [&] { return Time(in); });
  CheckWords(spec.Validate());
  return spec;
}

// A server of any options, which goes at once.
void TryServer(FuzzInput& in) {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.insecure = true;
  options.job_spec = AnyJob(in);
  Change(in, &options.listen, [&] { return "127.0.0.1" + Text(in); });
  Change(in, &options.job, [&] { return Text(in); });
  Change(in, &options.key_file, [&] { return Text(in); });
  Change(in, &options.insecure, [&] { return in.Flag(); });
  Change(in, &options.workers, [&] { return static_cast<uint32_t>(Number(in)); });
  Change(in, &options.min_workers, [&] { return static_cast<uint32_t>(Number(in)); });
  Change(in, &options.datagram_bytes, [&] { return static_cast<uint32_t>(Number(in)); });
  Change(in, &options.max_model, [&] { return ByteCount(static_cast<int64_t>(Number(in))); });
  Change(in, &options.capacity, [&] { return Bandwidth::Mbps(Real(in)); });
  Change(in, &options.worker_rate_floor, [&] { return Bandwidth::Mbps(Real(in)); });
  Change(in, &options.fault, [&] { return Text(in); });
  Change(in, &options.allow, [&] { return std::vector<std::string>{Text(in)}; });
  ChangeEnum(in, &options.cipher);
  Result<Server> server =
      Server::Start(options, [](const ServerEvent&) { throw std::runtime_error("event"); });
  CheckWords(server.status());
  if (!server.ok()) return;
  FUZZ_REQUIRE(!server->WaitFor(Duration(0)).has_value() && !server->StatsJson().empty());
  Server moved = *std::move(server);
  FUZZ_REQUIRE(server->port() == 0 && server->StatsJson() == "{}");
  if (in.Flag()) moved.Stop();
}

class Program {
 public:
  explicit Program(const Server& server) : server_(server) {}
  ~Program() {
    client_.reset();
    for (std::thread& thread : threads_) thread.join();
    for (const Operation& operation : operations_) CheckWords(EndOf(operation));
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void Connect(FuzzInput& in) {
    ConnectOptions options;
    options.servers = {server_.address()};
    options.insecure = true;
    options.connect_timeout = std::chrono::milliseconds(300);
    Change(in, &options.servers, [&] { return std::vector<std::string>{"127.0.0.1" + Text(in)}; });
    Change(in, &options.job, [&] { return Text(in); });
    Change(in, &options.rank, [&] { return static_cast<uint32_t>(Number(in)); });
    Change(in, &options.world_size, [&] { return static_cast<uint32_t>(Number(in)); });
    Change(in, &options.site, [&] { return Text(in); });
    Change(in, &options.incarnation, [&] { return Number(in); });
    Change(in, &options.weight, [&] { return static_cast<float>(Real(in)); });
    Change(in, &options.idle_timeout, [&] { return Time(in); });
    Change(in, &options.datagram_bytes, [&] { return static_cast<uint32_t>(Number(in)); });
    ChangeEnum(in, &options.rate_controller);
    ChangeEnum(in, &options.cipher);
    Change(in, &options.rate_cap, [&] { return Bandwidth::Mbps(Real(in)); });
    Change(in, &options.rate_floor, [&] { return Bandwidth::Mbps(Real(in)); });
    Change(in, &options.key_file, [&] { return Text(in); });
    Change(in, &options.fault, [&] { return Text(in); });
    if (in.Flag()) options.log = [](LogLevel, std::string_view) { throw 7; };
    Result<Client> client = Client::Connect(options);
    CheckWords(client.status());
    if (client.ok()) client_ = std::make_shared<Client>(*std::move(client));
    FUZZ_REQUIRE(!client.ok() || client->Push(tensor_, Span(in)).done());  // moved from
  }

  void Step(FuzzInput& in) {
    if (!client_) return;
    switch (in.Below(14)) {
      case 0:
        Declare(in);
        break;
      case 1:
      case 2:
        Begin(in, *client_);
        break;
      case 3:
        CheckWords(client_->SetScores(tensor_, Span(in)));
        break;
      case 4:
        CheckWords(client_->Barrier(Text(in)));
        break;
      case 5:
        Leave(in);
        break;
      case 6:
        CheckWords(Latest().WaitFor(in.Flag() ? std::chrono::milliseconds(20)
                                              : std::min(Time(in), Duration(1'000'000))));
        break;
      case 7:
        Call(in);
        break;
      case 8: {
        Operation moved = Latest();
        const Operation to = std::move(moved);
        CheckWords(moved.Wait());
        (void)to.stats();
        break;
      }
      case 9:
        (void)client_->stats();
        CheckWords(client_->status());
        (void)client_->settings();
        break;
      case 10:
        if (threads_.size() < 2) Share(in);
        break;
      case 11: {
        Client moved = std::move(*client_);
        CheckWords(client_->status());
        FUZZ_REQUIRE(client_->rank() == 0 && !client_->Barrier("b").ok());
        *client_ = std::move(moved);
        break;
      }
      case 12:
        tensor_ = in.Flag() ? Tensor() : other_;
        break;
      default:
        FillMemory(in);
    }
  }

 private:
  static Status EndOf(const Operation& operation) {
    const Status end = operation.WaitFor(kInTheEnd);
    FUZZ_REQUIRE(operation.done());
    return end;
  }

  std::span<float> Span(FuzzInput& in) {
    const size_t first = in.Flag() ? 0 : in.U8();
    const size_t count = in.U8() < 200 ? kCount : in.U16() % 500;
    if (in.U8() > 240) return {static_cast<float*>(nullptr), count};
    return std::span(memory_).subspan(first, count);
  }

  void FillMemory(FuzzInput& in) {
    if (memory_in_use_) return;  // the caller's rule: borrowed memory is not written to
    memory_[in.U8()] = Value(in);
  }

  void Declare(FuzzInput& in) {
    TensorOptions options;
    options.count = kCount;
    Change(in, &options.count, [&] { return Number(in); });
    ChangeEnum(in, &options.dtype);
    ChangeEnum(in, &options.wire_dtype);
    ChangeEnum(in, &options.result_dtype);
    Change(in, &options.priority, [&] { return static_cast<int>(Number(in)); });
    Change(in, &options.high_ranges, [&] {
      return std::vector<TensorOptions::Range>{{Number(in), Number(in)}};
    });
    Change(in, &options.high_share, [&] { return std::optional(Real(in)); });
    Change(in, &options.high_energy, [&] { return std::optional(Real(in)); });
    Change(in, &options.initial, [&] { return std::span<const float>(Span(in)); });
    if (in.Flag()) options.optimizer = in.U8() < 200 ? "sgd:lr=0.1" : Text(in);
    const Result<Tensor> tensor = client_->Declare(in.Flag() ? "w" : Text(in), options);
    CheckWords(tensor.status());
    if (tensor.ok()) other_ = std::exchange(tensor_, *tensor);
  }

  void Begin(FuzzInput& in, Client& client) {
    memory_in_use_ = true;
    switch (in.Below(3)) {
      case 0:
        return Keep(client.Push(tensor_, Span(in)));
      case 1:
        return Keep(client.Pull(tensor_, Span(in), {.min_round = in.U8() < 200 ? 0 : Number(in)}));
      default:
        return Keep(client.PushPull(tensor_, Span(in), Span(in)));
    }
  }
  void Keep(Operation operation) { operations_.push_back(std::move(operation)); }
  Operation Latest() const { return operations_.empty() ? Operation() : operations_.back(); }

  // In order only when nothing is pending: a pull may wait for a round that never comes.
  void Leave(FuzzInput& in) {
    const bool idle = std::ranges::all_of(operations_, [](const Operation& o) { return o.done(); });
    const uint8_t code = in.U8();
    if (code != 0 || idle) CheckWords(client_->Leave(Status(static_cast<StatusCode>(code), Text(in))));
  }

  // A callback that does one thing that it may not, or may.
  void Call(FuzzInput& in) {
    const uint32_t what = in.Below(7);
    if (what == 6) return Latest().Then(nullptr);
    std::weak_ptr<Client> weak = client_;
    const auto begin = std::this_thread::get_id();
    auto owner = what == 5 ? client_ : nullptr;
    if (what == 5) client_.reset();  // its last handle goes with the callback
    Operation latest = Latest();
    try {
      latest.Then([what, weak, begin, latest, owner = std::move(owner)](const Status& status) mutable {
        CheckWords(status);
        const bool at_once = std::this_thread::get_id() == begin;
        if (what == 0) throw std::runtime_error("callback");
        if (what == 1) throw 1;
        FUZZ_REQUIRE(latest.done() && latest.Wait() == status);
        const std::shared_ptr<Client> client = weak.lock();
        if (client == nullptr || at_once) return;
        if (what == 2) FUZZ_REQUIRE(client->Barrier("b").code() == StatusCode::kFailedPrecondition);
        if (what == 3) (void)client->stats();
        if (what == 4) FUZZ_REQUIRE(client->Leave().code() == StatusCode::kFailedPrecondition);
      });
    } catch (const std::exception&) {  // it was over: the callback ran here
    } catch (int) {
    }
  }

  // Another thread uses the client as well.
  void Share(FuzzInput& in) {
    const Tensor tensor = tensor_;
    memory_in_use_ = true;
    threads_.emplace_back([client = client_, tensor, this, count = in.Below(20)]() mutable {
      std::vector<float> out(kCount);
      std::vector<Operation> begun;
      for (uint32_t i = 0; i < count; ++i) {
        begun.push_back(client->PushPull(tensor, std::span(other_memory_).first(kCount), out));
      }
      (void)client->Leave(Status(StatusCode::kCancelled, "enough"));
      client.reset();
      for (const Operation& operation : begun) CheckWords(EndOf(operation));
    });
  }

  const Server& server_;
  std::vector<float> memory_ = std::vector<float>(1024, 1.0f);
  const std::vector<float> other_memory_ = std::vector<float>(kCount, 2.0f);
  bool memory_in_use_ = false;
  Tensor tensor_, other_;
  std::vector<Operation> operations_;
  std::vector<std::thread> threads_;
  std::shared_ptr<Client> client_;
};

Server& TheServer() {
  static Server server = [] {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.insecure = true;
    options.job_spec.idle_timeout = std::chrono::milliseconds(500);
    return *Server::Start(options);
  }();
  return server;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput in(data, size);
  if (in.U8() >= 0xf0) {
    TryServer(in);
    return 0;
  }
  Program program(TheServer());
  program.Connect(in);
  for (int steps = 0; !in.empty() && steps < kMaxSteps; ++steps) program.Step(in);
  return 0;
}
