#include "bench/load/bench_flow.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "base/files.h"
#include "base/process/signal_watcher.h"
#include "base/units_text.h"
#include "bench/load/flow_core.h"
#include "bench/load/flow_json.h"
#include "codec/fec/fec.h"
#include "proto/utf8.h"
#include "transport/keys/load_security.h"
#include "transport/udp/clock.h"
#include "transport/udp/event_loop.h"
#include "transport/udp/fault_injector.h"
#include "transport/udp/resolve.h"

namespace longhaul::load {
namespace {

using nlohmann::json;

constexpr Duration kProgress = std::chrono::seconds(1);

int Fail(const std::string& what, int code) {
  std::fprintf(stderr, "longhaul bench flow: %s\n", what.c_str());
  return code;
}

Status InFlag(const char* flag, const Status& why) {
  return Status(StatusCode::kInvalidArgument, std::string(flag) + ": " + why.message());
}

Status SetRates(const BenchFlowOptions& o, transport::RateOptions* rate) {
  rate->control = o.rate_controller;
  if (!o.rate_cap.empty()) {
    const auto cap = ParseRate(o.rate_cap);
    if (!cap.ok()) return InFlag("--rate-cap", cap.status());
    rate->cap = *cap;
  }
  if (!o.rate_floor.empty()) {
    const auto floor = ParseRate(o.rate_floor);
    if (!floor.ok()) return InFlag("--rate-floor", floor.status());
    rate->floor = *floor;
  }
  if (rate->floor <= rate->cap) return {};
  return Status(StatusCode::kInvalidArgument, "--rate-floor is above --rate-cap");
}

Result<FlowOptions> CoreOptions(const BenchFlowOptions& o) {
  FlowOptions core;
  const auto bytes = ParseBytes(o.bytes);
  if (!bytes.ok()) return InFlag("--bytes", bytes.status());
  if (bytes->value() < 1 || *bytes > ByteCount(int64_t{64} << 20)) {
    return Status(StatusCode::kInvalidArgument, "--bytes: a window has 1 byte to 64 MiB");
  }
  for (const auto& [flag, value] : {std::pair{"--seconds", o.seconds},
                                    {"--warmup", o.warmup},
                                    {"--series", o.series},
                                    {"--idle-timeout", o.idle_timeout},
                                    {"--connect-timeout", o.connect_timeout}}) {
    if (!std::isfinite(value)) {
      return Status(StatusCode::kInvalidArgument, std::string(flag) + " must be a number");
    }
  }
  if (o.warmup >= o.seconds) return Status(StatusCode::kInvalidArgument, "--warmup is not below --seconds");
  if (o.site.size() > wire::kMaxNameBytes || !wire::IsPrintable(o.site)) {
    return Status(StatusCode::kInvalidArgument,
                  "--site: a name has at most 256 bytes and no control characters");
  }
  core.site = o.site;
  core.window_bytes = *bytes;
  core.reliability = o.reliability;
  if (o.fec_k >= 0) core.fec_k = static_cast<uint8_t>(o.fec_k);
  core.length = FromSeconds(o.seconds);
  core.warmup = FromSeconds(o.warmup);
  core.series_interval = FromSeconds(o.series);
  core.max_windows = o.windows;
  core.connection.idle_timeout = FromSeconds(o.idle_timeout);
  core.connection.keepalive = std::min<Duration>(core.connection.keepalive, core.connection.idle_timeout / 4);
  core.connect_timeout =
      o.connect_timeout > 0 ? FromSeconds(o.connect_timeout) : core.connection.idle_timeout;
  core.connection.max_datagram = ByteCount(o.datagram_bytes);
  if (Status s = SetRates(o, &core.connection.rate); !s.ok()) return s;
  return core;
}

// The core as the loop sees it: adds the progress once a second and ends the loop with the run.
class DrivenFlow final : public transport::DatagramCore {
 public:
  DrivenFlow(FlowCore* core, bool quiet) : core_(core), quiet_(quiet) {}

  udp::EventLoop* loop = nullptr;

  void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                      const transport::ReceiveInfo& info) override {
    core_->HandleDatagram(now, from, datagram, info);
    Look();
  }
  void HandleTimeout(Instant now) override {
    core_->HandleTimeout(now);
    if (now >= next_progress_) Progress(now);
    Look();
  }
  void HandleSendRefused(Instant now, const Address& destination, size_t bytes) override {
    core_->HandleSendRefused(now, destination, bytes);
  }
  std::optional<transport::Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override {
    auto transmit = core_->PollTransmit(now, buffer);
    if (!transmit) Look();
    return transmit;
  }
  Instant NextTimeout() const override { return std::min(core_->NextTimeout(), next_progress_); }

 private:
  void Look() {
    if (core_->finished()) loop->Stop();
    if (core_->state() == FlowCore::State::kRunning && next_progress_.IsInfinite()) {
      next_progress_ = udp::Now() + kProgress;
    }
    if (core_->state() > FlowCore::State::kRunning) next_progress_ = Instant::Infinite();
  }

  void Progress(Instant now) {
    next_progress_ = next_progress_ + kProgress;
    if (quiet_) return;
    const FlowPoint point = core_->Now();
    const double seconds = std::chrono::duration<double>(point.at - last_.at).count();
    const double mbps = seconds <= 0 ? 0 : static_cast<double>(point.bytes - last_.bytes) * 8e-6 / seconds;
    const auto lost = point.connection.packets_lost - last_.connection.packets_lost;
    const auto sent = point.connection.packets_sent - last_.connection.packets_sent;
    const double loss = sent == 0 ? 0 : static_cast<double>(lost) / static_cast<double>(sent);
    const std::string line =
        FlowLine(std::chrono::duration<double>(core_->elapsed(now)).count(), mbps, point.connection, loss);
    std::fprintf(stderr, "%s\n", line.c_str());
    last_ = point;
  }

  FlowCore* core_;
  bool quiet_;
  Instant next_progress_ = Instant::Infinite();
  FlowPoint last_;
};

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Status WriteJson(const std::string& file, const json& value) {
  const std::string text = value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  return file == "-" ? WriteAll(STDOUT_FILENO, text) : WriteFileAtomically(file, text);
}

// A certificate may be a tool's or a worker's.
Result<keys::LoadedSecurity> LoadToolsSecurity(const BenchFlowOptions& o) {
  keys::SecurityChoice choice{.key_file = o.key_file,
                              .insecure = o.insecure,
                              .role = crypto::Role::kTool,
                              .expected_server = o.server_name};
  auto tool = keys::LoadSecurity(choice);
  if (tool.ok()) return tool;
  choice.role = crypto::Role::kWorker;
  return keys::LoadSecurity(choice);
}

void PrintSummary(const FlowReport& r) {
  std::fprintf(
      stderr,
      "goodput %.2f Mbit/s over %.2f s (%.1f MB confirmed by the server)\n"
      "  rtt p50 %.1f p99 %.1f ms, queue p50 %.1f p99 %.1f ms; lost %.2f %% of %llu packets\n"
      "  retransmitted %llu, repair symbols %llu, repaired %llu chunks, spurious %llu\n",
      r.goodput_mbps(), std::chrono::duration<double>(r.time).count(), static_cast<double>(r.bytes) * 1e-6,
      r.rtt_ms.Quantile(0.5), r.rtt_ms.Quantile(0.99), r.queue_ms.Quantile(0.5), r.queue_ms.Quantile(0.99),
      r.loss() * 100, static_cast<unsigned long long>(r.connection.packets_sent),
      static_cast<unsigned long long>(r.connection.retransmissions),
      static_cast<unsigned long long>(r.connection.repairs_sent), static_cast<unsigned long long>(r.repaired),
      static_cast<unsigned long long>(r.connection.packets_spurious));
}

int ExitCode(const FlowCore& core, bool interrupted) {
  if (interrupted) return kBenchInterrupted;
  if (core.outcome().ok()) return 0;
  return core.welcomed() ? kBenchFailed : kBenchUnreachable;
}

int Conclude(const BenchFlowOptions& options, const FlowCore& core, const udp::EventLoop& loop,
             const std::string& security, bool interrupted) {
  const FlowReport report = core.report();
  const Status outcome =
      interrupted ? Status(StatusCode::kCancelled, "interrupted; measured until then") : core.outcome();
  int code = ExitCode(core, interrupted);
  if (!outcome.ok()) Fail(outcome.ToString(), code);
  if (core.welcomed() && !options.quiet) PrintSummary(report);
  if (options.json_file.empty()) return code;
  json summary = FlowJson(report);
  summary["class"] = NameOf(options.reliability);
  summary["security"] = security;
  summary["outcome"] = StatusCodeName(outcome.code());
  summary["message"] = outcome.message();
  summary["cpu_seconds"] = CpuSeconds();
  summary["loop"] = {{"turns", loop.counters().turns},
                     {"batches_sent", loop.counters().batches_sent},
                     {"datagrams_sent", loop.counters().datagrams_sent},
                     {"timer_wakeups", loop.counters().timer_wakeups},
                     {"would_block", loop.counters().would_block}};
  if (options.series > 0) summary["series"] = SeriesJson(core.series());
  if (const Status written = WriteJson(options.json_file, summary); !written.ok()) {
    code = std::max(code, Fail("--json: " + written.message(), kBenchFailed));
  }
  return code;
}

}  // namespace

int RunBenchFlow(const BenchFlowOptions& options) {
  auto core_options = CoreOptions(options);
  if (!core_options.ok()) return Fail(core_options.status().message(), kBenchUsage);
  // Found out now, not at the end of the run.
  if (options.json_file != "-") {
    if (Status file = PrepareResultFile(options.json_file); !file.ok()) {
      return Fail("--json: " + file.message(), kBenchUsage);
    }
  }
  process::SignalWatcher signals;  // before the first thread
  const auto server = udp::ResolvePeer(options.join);
  if (!server.ok()) {
    const bool usage = server.status().code() == StatusCode::kInvalidArgument;
    return Fail("--join: " + server.status().message(), usage ? kBenchUsage : kBenchUnreachable);
  }
  std::optional<udp::FaultInjector> faults;
  if (!options.fault.empty()) {
    const auto parsed = udp::ParseFaults(options.fault);
    if (!parsed.ok()) return Fail("--fault: " + parsed.status().message(), kBenchUsage);
    faults.emplace(*parsed);
  }
  if (!options.insecure && options.key_file.empty()) {
    return Fail("which key does the server have? --key FILE, or --insecure when it has none", kBenchUsage);
  }
  auto security = LoadToolsSecurity(options);
  if (!security.ok()) return Fail(security.status().ToString(), kBenchUsage);
  core_options->security = security->security();
  auto coder = codec::ErasureCodeLibrary::Create();
  if (!coder.ok()) return Fail(coder.status().ToString(), kBenchFailed);
  auto socket = udp::UdpSocket::Open(udp::UdpSocket::AnyAddressFor(*server));
  if (!socket.ok()) return Fail(socket.status().ToString(), kBenchFailed);
  for (const std::string& warning : socket->warnings()) Fail("warning: " + warning, 0);

  FlowCore core(*core_options, coder->get(), Random(options.seed == 0 ? udp::EntropySeed() : options.seed));
  DrivenFlow driven(&core, options.quiet);
  auto loop = udp::EventLoop::Create(&driven, std::move(*socket), faults ? &*faults : nullptr);
  if (!loop.ok()) return Fail(loop.status().ToString(), kBenchFailed);
  driven.loop = loop->get();
  signals.Guard([&](int) { (void)(*loop)->Post([&core] { core.Stop(udp::Now()); }); });
  core.Start(udp::Now(), *server);
  (*loop)->Run();
  signals.Guard({});
  return Conclude(options, core, **loop, security->kind, signals.interrupted());
}

}  // namespace longhaul::load
