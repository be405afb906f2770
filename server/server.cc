#include "longhaul/server.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/flags/job_json.h"
#include "base/placement.h"
#include "base/random.h"
#include "base/units_text.h"
#include "base/user_calls.h"
#include "codec/fec/fec.h"
#include "proto/control_codec.h"
#include "proto/utf8.h"
#include "server/checkpoint_thread.h"
#include "server/daemon.h"
#include "server/job/authorization.h"
#include "server/job/job_stats.h"
#include "server/machine_memory.h"
#include "server/registration.h"
#include "server/report/log_limiter.h"
#include "server/report/server_json.h"
#include "server/server_core.h"
#include "server/store/shards.h"
#include "transport/keys/key_file.h"
#include "transport/keys/load_security.h"
#include "transport/udp/clock.h"
#include "transport/udp/event_loop.h"
#include "transport/udp/fault_injector.h"
#include "transport/udp/resolve.h"

namespace longhaul {
namespace {

using nlohmann::json;
using server::JobRound;
using server::Member;
using server::ServerStats;

// How long a stopping server waits for its peers to hear it.
constexpr Duration kDrainTime = std::chrono::milliseconds(1500);

// How long a stopping server lets rounds in progress come to their end, for its last checkpoint: some rounds
// of a busy WAN (README: 0.3 s at the median), and with the write much less than the 30 s after which
// Kubernetes, and the 90 s after which systemd, sends SIGKILL.
constexpr Duration kLastRounds = std::chrono::seconds(2);
constexpr Duration kLastWrite = std::chrono::seconds(20);

// Longer than any program runs; the clock's time plus this fits a Duration.
constexpr Duration kLongestWait = std::chrono::hours(24 * 365 * 100);

// How long a question to the loop waits for its answer; that comes at once, but for a callback that blocks.
constexpr Duration kAnswerWait = std::chrono::seconds(2);

Status Moved() { return {StatusCode::kFailedPrecondition, "this server has been moved from"}; }

Bandwidth NoneIsMax(Bandwidth cap) { return cap.IsZero() ? Bandwidth::Max() : cap; }

// What is readable and forgeable by everyone on its way stays on this machine unless insecure_bind is given
// as well.
Status CheckInsecureBind(const ServerOptions& options, const Address& listen) {
  if (!options.insecure || options.insecure_bind || listen.IsLoopback()) return {};
  return {StatusCode::kInvalidArgument, "without a key the server listens on loopback addresses only, and " +
                                            listen.ToString() +
                                            " is none: give it a key ('key_file', made by longhaul keygen), "
                                            "or say 'insecure_bind' if everyone who can "
                                            "reach that address may read and change the job"};
}

// Opens the port where `options` say.
Result<udp::UdpSocket> Listen(const ServerOptions& options) {
  auto listen = udp::ResolveListen(options.listen);
  if (!listen.ok()) return listen.status();
  if (Status bind = CheckInsecureBind(options, *listen); !bind.ok()) return bind;
  auto socket = udp::UdpSocket::Open(*listen);
  // The text was fine; this machine just has no such address.
  if (!socket.ok() && socket.status().code() == StatusCode::kInvalidArgument) {
    return Status(StatusCode::kUnavailable, socket.status().message());
  }
  return socket;
}

server::AccessRules RulesOf(const keys::LoadedSecurity& security) {
  return {.allow = security.allow, .trusts = security.trusts, .expires = security.expires};
}

int64_t WallClock() {
  return static_cast<int64_t>(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()));
}

// Which of the job's servers this is, and what the first one of several says.
struct Placed {
  ServerOptions options;  // with the job's settings
  server::ServerPlace place;
  uint64_t start = 0;  // a later start of a server with this place has a higher one
  std::unique_ptr<server::Registration> registration = {};  // of the others
};

Status CheckSeveral(const ServerOptions& o) {
  const auto invalid = [](const std::string& text) { return Status(StatusCode::kInvalidArgument, text); };
  if (o.servers < 1 || o.servers > kMaxServers) {
    return invalid("servers is " + std::to_string(o.servers) + ", but must be in 1..64");
  }
  for (const std::string& text : {o.advertise, o.first_server, o.job}) {
    if (text.size() > wire::kMaxNameBytes || !wire::IsPrintable(text)) {
      return invalid(
          "'advertise', 'first_server' and 'job' have at most 256 bytes, none a control character");
    }
  }
  if (!o.advertise.empty()) {
    const auto parsed = udp::ParseHostPort(o.advertise);
    if (!parsed.ok()) return invalid("'advertise': " + parsed.status().message());
  }
  if (!o.advertise.empty() && o.servers == 1 && o.first_server.empty()) {
    return invalid("'advertise' is for a job of several servers");
  }
  if (o.first_server.empty()) return {};
  const ServerOptions none;
  if (o.plugin_aggregation.empty() && o.servers == 1 && o.workers == none.workers &&
      o.min_workers == none.min_workers && o.start_workers == none.start_workers &&
      o.job_spec == none.job_spec)
    return {};
  return invalid(
      "with 'first_server' that server decides: servers, workers, min_workers, start_workers and the job's "
      "settings are "
      "given there");
}

Status CheckCheckpoints(const ServerOptions& options) {
  if (options.round_log && options.checkpoint_dir.empty()) {
    return {StatusCode::kInvalidArgument, "round_log is written to checkpoint_dir, which is not given"};
  }
  if (options.checkpoint_dir.empty()) return {};
  const auto bad = [](const char* which, uint32_t value, const char* range) {
    return Status(StatusCode::kInvalidArgument,
                  std::string(which) + " is " + std::to_string(value) + ", but must be in " + range);
  };
  if (options.checkpoint_every < 1 || options.checkpoint_every > 1'000'000)
    return bad("checkpoint_every", options.checkpoint_every, "1..1000000");
  if (options.checkpoint_keep < 1 || options.checkpoint_keep > 1000)
    return bad("checkpoint_keep", options.checkpoint_keep, "1..1000");
  return {};
}

// REQUIRES: CheckSeveral(options) is Ok.
Result<Placed> FindPlace(const ServerOptions& options, const keys::SecurityChoice& keys, uint16_t port,
                         std::function<void(LogLevel, const std::string&)> log) {
  Placed placed{.options = options, .place = {.servers = options.servers, .address = options.advertise}};
  server::store::StoredPlace disk;
  if (!options.checkpoint_dir.empty()) {
    auto read = server::store::ReadPlace(SystemFiles(), options.checkpoint_dir);
    if (!read.ok()) return read.status();
    if (*read) disk = **read;
    const auto found = server::store::ListCheckpoints(SystemFiles(), options.checkpoint_dir);
    const bool several = options.servers > 1 || !options.first_server.empty();
    if (several && !*read && found.ok() && !found->empty()) {
      return Status(StatusCode::kSettingsMismatch, options.checkpoint_dir +
                                                       " is of the only server of a job, and this one is one "
                                                       "of several (longhaul checkpoint reshard)");
    }
  }
  const auto differs = [&](const std::string& here) {
    return Status(StatusCode::kSettingsMismatch,
                  options.checkpoint_dir + " is of " + disk.ToString() + ", and this server is " + here);
  };
  // By time where no disk says what was before. ms: two starts of one server are further apart.
  placed.start =
      std::max(disk.start + 1, static_cast<uint64_t>(duration_cast<std::chrono::milliseconds>(
                                                         std::chrono::system_clock::now().time_since_epoch())
                                                         .count()));
  if (options.first_server.empty()) {
    if (options.servers > 1) placed.place.map_epoch = std::max<uint64_t>(disk.map_epoch, 1);
    const bool same = disk.server == 0 && disk.servers == options.servers;
    if (disk.map_epoch != 0 && !same) return differs("server 1 of " + std::to_string(options.servers));
    return placed;
  }
  if (disk.map_epoch != 0 && disk.server == 0) return differs("not the first");
  server::Registration::Options registration{
      .first_server = options.first_server, .keys = keys, .log = std::move(log)};
  registration.join.set_address(options.advertise.empty() ? ":" + std::to_string(port) : options.advertise);
  registration.join.set_map_epoch(disk.map_epoch);
  registration.join.set_server(disk.server);
  registration.join.set_servers(disk.map_epoch == 0 ? 0 : disk.servers);
  registration.join.set_start(placed.start);
  registration.join.set_logs(options.round_log);
  auto opened = server::Registration::Open(registration);
  if (!opened.ok()) return opened.status();
  placed.registration = *std::move(opened);
  const control::ServerWelcome& welcome = placed.registration->welcome();
  placed.options.job_spec = *wire::DecodeJobSpec(welcome.job_spec());  // the reader has checked it
  placed.options.plugin_aggregation = welcome.plugin_aggregation();
  placed.options.workers = welcome.workers();
  placed.options.min_workers = welcome.min_workers();
  placed.options.start_workers = welcome.start_workers();
  placed.place.servers = welcome.servers();
  placed.place.server = welcome.server();
  placed.place.map_epoch = welcome.map_epoch();
  placed.place.first_server = options.first_server;
  return placed;
}

// REQUIRES: the plug-ins are in the settings.
Status TakeAggregation(const ServerOptions& options, server::ServerSettings* s) {
  const auto invalid = [](const std::string& why) { return Status(StatusCode::kInvalidArgument, why); };
  if (options.plugin_aggregation.empty()) return {};
  if (s->aggregation != Aggregation::kMean && s->aggregation != Aggregation::kPlugin) {
    return invalid("'plugin_aggregation' is instead of aggregation " + std::string(NameOf(s->aggregation)));
  }
  s->aggregation = Aggregation::kPlugin;
  s->aggregation_rule = s->rules.FindAggregation(options.plugin_aggregation);
  if (s->aggregation_rule != nullptr) return {};
  return invalid("no plug-in has the aggregation \"" + options.plugin_aggregation + "\"");
}

Result<server::ServerCoreOptions> MakeCoreOptions(const ServerOptions& options,
                                                  const server::ServerPlace& place,
                                                  const keys::LoadedSecurity& security) {
  server::ServerCoreOptions core;
  server::ServerSettings& s = core.settings;
  static_cast<JobSpec&>(s) = options.job_spec;
  s.job = security.job;
  s.security = security.kind;
  s.identity = security.description;
  s.access = RulesOf(security);
  core.security = security.security();
  core.wall_clock = WallClock;
  s.first_job = udp::EntropySeed();
  s.place = place;
  s.world_size = options.workers;
  s.min_workers = options.min_workers == 0 ? options.workers : options.min_workers;
  s.start_workers = options.start_workers;
  s.min_incarnation = options.min_incarnation;
  s.max_datagram = ByteCount(options.datagram_bytes);
  s.max_model = options.max_model;
  if (options.max_memory < ByteCount(0)) {
    return Status(
        StatusCode::kInvalidArgument,
        "max_memory is " + std::to_string(options.max_memory.value()) + " bytes, and must be 0 or more");
  }
  s.memory = static_cast<uint64_t>(options.max_memory.value());
  if (s.memory == 0) {
    const uint64_t available = server::AvailableMemory();
    s.memory = available - available / 8;
  }
  s.grants = {.enabled = options.grants,
              .capacity = options.capacity,
              .capacity_floor = options.capacity_floor,
              .capacity_cap = NoneIsMax(options.capacity_cap),
              .worker_floor = options.worker_rate_floor,
              .worker_cap = NoneIsMax(options.worker_rate_cap)};
  for (const longhaul_plugin* plugin : options.plugins) {
    if (Status added = s.rules.Add(plugin); !added.ok()) return added;
  }
  if (Status aggregation = TakeAggregation(options, &s); !aggregation.ok()) return aggregation;
  core.admission.max_half_open = options.max_half_open;
  core.admission.half_open_timeout = options.half_open_timeout;
  if (!options.checkpoint_dir.empty()) s.checkpoint_every = options.checkpoint_every;
  if (Status valid = core.Validate(); !valid.ok()) return valid;
  core.status_json = [](const ServerStats& stats) {
    return server::StatusText(stats, wire::kMaxControlMessageBytes / 2);
  };
  return core;
}

// Said at the start, not when the largest tensor is declared.
void SayMemory(const server::ServerSettings& settings, UserCalls* calls) {
  const uint64_t planned = server::PlannedMemory(settings);
  if (settings.memory == 0 || settings.memory >= planned) return;
  calls->Log(LogLevel::kInfo,
             "tensors may take " + std::to_string(settings.memory >> 20) +
                 " MiB of this machine's memory, and --max-model-bytes would let them take " +
                 std::to_string(planned >> 20) + " MiB: what does not fit is refused when it is declared");
}

// " (worker fra)", or nothing.
std::string In(const std::string& who) { return who.empty() ? "" : " (" + who + ")"; }

// Turns the core's events into lines. Lives on the loop's thread.
class EventLines final : public server::ServerEvents {
 public:
  EventLines(std::function<void(const ServerEvent&)> sink, LogCallback log)
      : sink_(std::move(sink)), calls_(std::move(log)) {}
  UserCalls& calls() { return calls_; }

  // Called after a job is over, with how it ended.
  std::function<void(const Status& outcome, const ServerStats& stats)> on_job_over;
  std::function<void()> on_hand_over;

  void OnJoin(uint32_t rank, const Member& member, bool replaces) override {
    const std::string site = member.site.empty() ? "" : ", site " + member.site;
    const std::string who = server::IdentityText(member.identity);
    const std::string text = "worker rank " + std::to_string(rank) + " joined from " +
                             member.peer.ToString() + In(who) + site +
                             (replaces ? ", replacing an older incarnation" : "");
    Emit(ServerEvent::Kind::kJoin, text,
         {{"event", "join"},
          {"rank", rank},
          {"site", member.site},
          {"identity", who},
          {"peer", member.peer.ToString()},
          {"incarnation", member.incarnation},
          {"replaces", replaces}});
  }
  void OnWeightBounded(const std::string& who, float weight, float counted) override {
    char text[64];
    std::snprintf(text, sizeof text, " says weight %g, which counts as %g", static_cast<double>(weight),
                  static_cast<double>(counted));
    Emit(ServerEvent::Kind::kWeight, who + text + " (--max-weight-share)",
         {{"event", "weight_bounded"}, {"who", who}, {"weight", weight}, {"counted", counted}});
  }
  void OnLeftOut(const server::LeftOut& left_out, const std::string& who) override {
    const std::string text = who + " was left out of round " + std::to_string(left_out.round) +
                             " of tensor \"" + left_out.tensor + "\", which had waited " +
                             SecondsText(left_out.waited) + " for it; its gradient counts when it comes";
    const auto verdict = left_out_.Add(udp::Now(), text);
    SayLeftOut(verdict.left_out, "workers were left out of rounds", "left_out");
    if (!verdict.line) return;
    Emit(ServerEvent::Kind::kLeftOut, text,
         {{"event", "left_out"},
          {"rank", left_out.rank},
          {"who", who},
          {"tensor", left_out.tensor},
          {"round", left_out.round},
          {"waited_seconds", ToSeconds(left_out.waited)}});
  }
  void OnWaiting(const std::string& text, const std::vector<uint32_t>& missing) override {
    Emit(ServerEvent::Kind::kWaiting, text, {{"event", "waiting"}, {"message", text}, {"missing", missing}});
  }
  void OnStart(uint32_t workers, uint32_t symbol_bytes) override {
    Emit(ServerEvent::Kind::kStart,
         "the job starts with " + std::to_string(workers) + " workers; chunks of " +
             std::to_string(symbol_bytes) + " bytes",
         {{"event", "start"}, {"workers", workers}, {"symbol_bytes", symbol_bytes}});
  }
  void OnRound(const JobRound& round, const ServerStats& stats) override {
    if (sink_ || calls_.logs())
      Emit(ServerEvent::Kind::kRound, server::RoundText(round), server::RoundJson(round, stats));
  }
  void OnLeave(uint32_t rank, const std::string& who, const Status& why) override {
    Emit(ServerEvent::Kind::kLeave, who + (why.ok() ? " left" : " is lost: " + why.ToString()),
         {{"event", "leave"},
          {"rank", rank},
          {"who", who},
          {"code", StatusCodeName(why.code())},
          {"message", why.message()}});
  }
  void OnRejected(const server::Rejection& rejection, const std::string& who) override {
    Emit(ServerEvent::Kind::kRejected, server::RejectionText(rejection, who),
         server::RejectionJson(rejection, who));
  }
  void OnHandshakeFailed(const Address& peer, const Status& why) override {
    const std::string text = "handshake with " + peer.ToString() + " failed: " + why.ToString();
    const auto verdict = handshakes_.Add(udp::Now(), text);
    SayHandshakesLeftOut(verdict.left_out);
    if (!verdict.line) return;
    Emit(ServerEvent::Kind::kRefused, text,
         {{"event", "handshake_failed"},
          {"peer", peer.ToString()},
          {"code", StatusCodeName(why.code())},
          {"message", why.message()}});
  }
  void OnRefused(const Address& peer, const std::string& who, const Status& why) override {
    const std::string text = "refused " + peer.ToString() + In(who) + ": " + why.ToString();
    const auto verdict = refusals_.Add(udp::Now(), text);
    SayRefusalsLeftOut(verdict.left_out);
    if (!verdict.line) return;
    Emit(ServerEvent::Kind::kRefused, text,
         {{"event", "refused"},
          {"peer", peer.ToString()},
          {"identity", who},
          {"code", StatusCodeName(why.code())},
          {"message", why.message()}});
  }
  void OnKick(uint32_t rank, const std::string& who, const std::string& by) override {
    Emit(ServerEvent::Kind::kAccess, who + " is kicked by " + by,
         {{"event", "kick"}, {"rank", rank}, {"who", who}, {"by", by}});
  }
  void OnHandOver() override {
    if (on_hand_over) on_hand_over();
  }
  void OnHandOverAsked(const std::string& by, const Status& why) override {
    const std::string text = why.ok() ? by + " wants the job handed over to other servers"
                                      : "the job is not handed over: " + why.ToString();
    Emit(ServerEvent::Kind::kServer, text,
         {{"event", "hand_over"},
          {"by", by},
          {"code", StatusCodeName(why.code())},
          {"message", why.message()}},
         why.ok() ? LogLevel::kInfo : LogLevel::kWarning);
  }
  void OnExpiring(const std::string& who, int64_t seconds) override {
    const std::string when = seconds < 0 ? " has expired"
                                         : " expires in " + std::to_string(seconds / 3600) + " h " +
                                               std::to_string(seconds / 60 % 60) + " min";
    Emit(ServerEvent::Kind::kAccess, "the certificate of " + who + when,
         {{"event", "expiring"}, {"who", who}, {"seconds", seconds}});
  }
  void OnServer(const std::string& server, const std::string& who, const Status& why) override {
    Emit(ServerEvent::Kind::kServer, server + In(who) + (why.ok() ? " is in" : " is lost: " + why.ToString()),
         {{"event", "server"},
          {"server", server},
          {"identity", who},
          {"code", StatusCodeName(why.code())},
          {"message", why.message()}},
         why.ok() ? LogLevel::kInfo : LogLevel::kWarning);
  }
  void OnBench(const Address& peer, const std::string& who, const std::string& site,
               const server::GuestTotals* totals) override {
    json line = {{"event", "bench"},
                 {"peer", peer.ToString()},
                 {"identity", who},
                 {"site", site},
                 {"ended", totals != nullptr}};
    std::string text =
        "load generator " + peer.ToString() + In(who) + " is in; what it sends is counted and dropped";
    if (totals != nullptr) {
      const double seconds = std::chrono::duration<double>(totals->elapsed).count();
      line["bytes_up"] = totals->high_bytes + totals->low_bytes;
      line["seconds"] = seconds;
      char words[64];
      std::snprintf(words, sizeof words, " is gone: %.1f MB in %.1f s",
                    static_cast<double>(totals->high_bytes + totals->low_bytes) * 1e-6, seconds);
      text = "load generator " + peer.ToString() + In(who) + words;
    }
    Emit(ServerEvent::Kind::kBench, text, line);
  }
  // Failures: the first of a kind is a warning, then they are counted until one is written again.
  void OnCheckpoint(const server::CheckpointThread::Outcome& outcome) {
    const bool ok = outcome.status.ok();
    json line = {{"event", "checkpoint"},
                 {"round", outcome.rounds},
                 {"code", StatusCodeName(outcome.status.code())},
                 {"message", outcome.status.message()},
                 {"seconds", ToSeconds(outcome.took)}};
    std::string text = "checkpoint after round " + std::to_string(outcome.rounds);
    if (ok) {
      line["generation"] = outcome.generation;
      line["bytes"] = outcome.bytes;
      text += ": " + std::to_string(outcome.bytes) + " bytes in " + SecondsText(outcome.took);
      if (!checkpoint_failure_.ok()) text += "; checkpoints can be written again";
    } else {
      text += " could not be written, training goes on: " + outcome.status.ToString();
    }
    const bool news = !(outcome.status == checkpoint_failure_);
    checkpoint_failure_ = outcome.status;
    const LogLevel level = ok ? LogLevel::kInfo : LogLevel::kWarning;
    Emit(ServerEvent::Kind::kCheckpoint, text, line, news ? level : LogLevel::kDebug);
  }
  void OnRoundLog(const Status& why) {
    const std::string text = "the round log could not be written, training goes on: " + why.ToString() +
                             "; a server that dies now loses rounds";
    const bool news = !(why == log_failure_);
    log_failure_ = why;
    Emit(ServerEvent::Kind::kCheckpoint, text,
         {{"event", "round_log"}, {"code", StatusCodeName(why.code())}, {"message", why.message()}},
         news ? LogLevel::kWarning : LogLevel::kDebug);
  }
  void OnJobOver(const Status& outcome, const ServerStats& stats) override {
    json summary = server::JobSummary(stats);
    summary["event"] = outcome.ok() ? "finished" : "abort";
    summary["code"] = StatusCodeName(outcome.code());
    summary["message"] = outcome.message();
    const std::string text = outcome.ok() ? "job finished after " + std::to_string(stats.rounds) + " rounds"
                                          : "job aborted: " + outcome.ToString();
    Emit(outcome.ok() ? ServerEvent::Kind::kFinished : ServerEvent::Kind::kAbort, text, summary);
    if (on_job_over) on_job_over(outcome, stats);
  }

  // Says how many were not told one by one; due at NextTimeout().
  void HandleTimeout(Instant now) {
    SayHandshakesLeftOut(handshakes_.TakeLeftOut(now));
    SayRefusalsLeftOut(refusals_.TakeLeftOut(now));
    SayLeftOut(left_out_.TakeLeftOut(now), "workers were left out of rounds", "left_out");
  }
  Instant NextTimeout() const { return std::min({handshakes_.Due(), refusals_.Due(), left_out_.Due()}); }

 private:
  void SayHandshakesLeftOut(uint64_t count) {
    SayLeftOut(count, "failed at the handshake", "handshake_failed");
  }
  void SayRefusalsLeftOut(uint64_t count) { SayLeftOut(count, "were refused", "refused"); }
  void SayLeftOut(uint64_t count, const std::string& what, const std::string& event) {
    if (count == 0) return;
    Emit(ServerEvent::Kind::kRefused,
         std::to_string(count) + " more " + what + " (repeated, or too many to log each)",
         {{"event", "suppressed"}, {"of", event}, {"count", count}});
  }
  static LogLevel LevelOf(ServerEvent::Kind kind) {
    if (kind == ServerEvent::Kind::kRound) return LogLevel::kDebug;
    const bool bad = kind == ServerEvent::Kind::kAbort || kind == ServerEvent::Kind::kRefused ||
                     kind == ServerEvent::Kind::kRejected || kind == ServerEvent::Kind::kWeight ||
                     kind == ServerEvent::Kind::kLeftOut || kind == ServerEvent::Kind::kAccess;
    return bad ? LogLevel::kWarning : LogLevel::kInfo;
  }
  void Emit(ServerEvent::Kind kind, const std::string& text, const json& value) {
    Emit(kind, text, value, LevelOf(kind));
  }
  void Emit(ServerEvent::Kind kind, const std::string& text, const json& value, LogLevel level) {
    calls_.Log(level, text);
    if (!sink_) return;
    // Names come from the network: replace rather than throw on what is not UTF-8.
    const std::string line = value.dump(-1, ' ', false, json::error_handler_t::replace);
    calls_.Call("on_event", sink_, ServerEvent{kind, text, line});
  }

  std::function<void(const ServerEvent&)> sink_;
  UserCalls calls_;
  // Two: strangers that fail at the handshake must not hide the peers that the job refuses.
  server::LogLimiter handshakes_;
  server::LogLimiter refusals_;
  server::LogLimiter left_out_;
  Status checkpoint_failure_;  // of the last one
  Status log_failure_;
};

}  // namespace

struct Server::Impl {
  Impl(std::function<void(const ServerEvent&)> sink, LogCallback log)
      : events(std::move(sink), std::move(log)) {}
  ~Impl() {
    if (OnLoopThread()) {
      thread.detach();  // this is its last deed
      return;
    }
    RequestStop();
    if (thread.joinable()) thread.join();
  }

  bool OnLoopThread() const { return thread.get_id() == std::this_thread::get_id(); }

  // What `question` says on the loop's thread. Errors: kFailedPrecondition (the loop has ended),
  // kDeadlineExceeded (it does not answer).
  template <typename Question>
  auto Ask(const Question& question) -> Result<decltype(question())> {
    struct Answer {
      std::mutex mutex;
      std::condition_variable ready;
      std::optional<decltype(question())> value;
    };
    if (OnLoopThread()) return question();
    const auto answer = std::make_shared<Answer>();
    const Status posted = loop->Post([question, answer] {
      auto value = question();
      const std::lock_guard lock(answer->mutex);
      answer->value = std::move(value);
      answer->ready.notify_all();
    });
    if (!posted.ok()) return posted;
    std::unique_lock lock(answer->mutex);
    // A loop that stops meanwhile never answers.
    if (answer->ready.wait_for(lock, kAnswerWait, [&] { return answer->value.has_value(); }))
      return *std::move(answer->value);
    return Status(StatusCode::kDeadlineExceeded, "the server's loop does not answer");
  }

  void RequestStop() {
    if (!loop) return;
    const Status posted =
        loop->Post([this] { BeginShutdown(Status(StatusCode::kCancelled, "the server is shutting down")); });
    if (!posted.ok()) loop->Stop();  // too much is posted
  }

  // What follows needs the round log: a worker takes no other server for the one that it has lost.
  Status RequestHandOver() {
    return loop->Post([this] {
      if (stopping) return;
      const bool failing = may_hand_over.ok() && checkpoints->log_failing();
      if (!may_hand_over.ok() || failing) {
        const std::string why = failing ? "the round log cannot be written" : may_hand_over.message();
        return events.calls().Log(LogLevel::kWarning, "the job is not handed over here: " + why);
      }
      hands_over = true;
      BeginShutdown(
          Status(StatusCode::kUnavailable, "the server hands the job over to the one that starts next"));
    });
  }

  // The handle is gone. From one of its own callbacks the server goes on to its end by itself.
  static void Release(std::unique_ptr<Impl> impl) {
    if (!impl || !impl->OnLoopThread()) return;
    impl->RequestStop();
    Impl& self = *impl;
    self.own = std::move(impl);
  }

  // On the loop's thread.
  void BeginShutdown(const Status& why) {
    if (stopping) return;
    stopping = true;
    core->KeepState(udp::Now());
    deadline = udp::Now() + kLastRounds;
    last_rounds = why;
    WaitForRounds();
  }

  // Not from inside a poll of the core.
  void WaitForRounds() {
    if (!last_rounds || (core->KeepsState() && udp::Now() < deadline)) return;
    const Status why = *std::exchange(last_rounds, std::nullopt);
    if (!loop->Post([this, why] { ShutDown(why); }).ok()) loop->Stop();  // too much is posted
  }

  void ShutDown(const Status& why) {
    if (hands_over && registration) registration->Leave();
    hands_over ? core->HandOver(udp::Now(), why) : core->Shutdown(udp::Now(), why);
    deadline = udp::Now() + kDrainTime;
    WaitForDrain();
  }

  // The core has no thread to wait in: looks again whenever it was given the chance to send.
  void WaitForDrain() {
    if (core->Drained() || udp::Now() >= deadline) {
      loop->Stop();
      return;
    }
    drain_check = true;
  }

  // The core as the loop sees it, so that the end of draining is noticed at once.
  class Driven final : public transport::DatagramCore {
   public:
    explicit Driven(Impl* impl) : impl_(impl) {}
    void HandleDatagram(Instant now, const Address& from, MutableByteSpan datagram,
                        const transport::ReceiveInfo& info) override {
      impl_->core->HandleDatagram(now, from, datagram, info);
    }
    void HandleTimeout(Instant now) override {
      impl_->core->HandleTimeout(now);
      impl_->events.HandleTimeout(now);
      impl_->CheckDrain();
    }
    void HandleSendRefused(Instant now, const Address& to, size_t bytes) override {
      impl_->core->HandleSendRefused(now, to, bytes);
    }
    std::optional<transport::Transmit> PollTransmit(Instant now, MutableByteSpan buffer) override {
      auto transmit = impl_->core->PollTransmit(now, buffer);
      if (!transmit) impl_->CheckDrain();
      return transmit;
    }
    bool HasWork() const override { return impl_->core->HasWork(); }
    void Work(Instant now) override { impl_->core->Work(now); }
    void HandleLongestEvent(Duration cpu) override { impl_->core->HandleLongestEvent(cpu); }
    Instant NextTimeout() const override {
      const Instant next = std::min(impl_->core->NextTimeout(), impl_->events.NextTimeout());
      return impl_->stopping ? std::min(next, impl_->deadline) : next;
    }

   private:
    Impl* impl_;
  };

  void CheckDrain() {
    WaitForRounds();
    if (drain_check) WaitForDrain();
  }

  void TellOfCheckpoints() {
    for (const auto& each : checkpoints->TakeOutcomes()) events.OnCheckpoint(each);
    for (const Status& error : checkpoints->TakeLogErrors()) events.OnRoundLog(error);
  }
  void OnKept() {
    TellOfCheckpoints();
    core->OnLogged(udp::Now());
  }
  // The loop has ended.
  void FinishCheckpoints() {
    const bool written = checkpoints->Finish(kLastWrite);
    TellOfCheckpoints();
    if (!written)
      events.calls().Log(LogLevel::kWarning, "the last checkpoint is not written after " +
                                                 SecondsText(kLastWrite) + ": the one before stays");
    const std::lock_guard lock(mutex);
    last_stats = StatsText();
  }

  // This server has no place any more.
  void GiveUp(const Status& why) {
    events.calls().Log(LogLevel::kWarning, why.ToString());
    {
      const std::lock_guard lock(mutex);
      gave_up = why;
    }
    BeginShutdown(why);
  }

  void OnJobOver(const Status& result, const ServerStats& stats) {
    {
      const std::lock_guard lock(mutex);
      outcome = result;
      last_stats = TextOf(Completed(stats));
    }
    // Not from inside the core's event.
    if (once) (void)loop->Post([this] { BeginShutdown(Status(StatusCode::kCancelled, "the job is over")); });
  }

  void Run() {
    loop->Run();
    {
      if (checkpoints) FinishCheckpoints();
      const std::lock_guard lock(mutex);
      if (!gave_up.ok()) outcome = gave_up;
      if (!loop->failure().ok()) outcome = loop->failure();
      stopped = true;
      changed.notify_all();
    }
    const std::unique_ptr<Impl> last = std::move(own);
  }

  // On the loop's thread.
  ServerStats StatsNow() { return Completed(core->stats()); }
  std::string StatsText() { return TextOf(StatsNow()); }
  ServerStats Completed(ServerStats stats) {
    stats.callbacks_threw = events.calls().threw();
    return stats;
  }
  static std::string TextOf(const ServerStats& stats) {
    return server::ToJson(stats).dump(-1, ' ', false, json::error_handler_t::replace);
  }

  // What the loop uses comes before the loop, so that it goes after it.
  keys::LoadedSecurity security;  // as at the start
  keys::SecurityChoice choice;    // what a reload changes a part of
  uint32_t world_size = 1;
  std::unique_ptr<codec::ErasureCoder> coder;
  std::string fec_backend = "none";
  EventLines events;
  std::unique_ptr<server::Guests> guests;
  std::unique_ptr<server::CheckpointThread> checkpoints;
  std::unique_ptr<server::ServerCore> core;
  std::optional<udp::FaultInjector> faults;
  Driven driven{this};
  std::unique_ptr<udp::EventLoop> loop;
  Address address;
  bool once = false;
  Status may_hand_over;
  bool stopping = false;  // loop's thread
  std::atomic<bool> hands_over = false;
  bool drain_check = false;           // loop's thread
  std::optional<Status> last_rounds;  // loop's thread: why it stops once these are over
  Instant deadline = Instant::Infinite();
  std::unique_ptr<server::Registration> registration;  // its thread posts to the loop, and ends before it
  std::unique_ptr<Impl> own;                           // loop's thread; itself, when its end is that thread's
  std::thread thread;

  mutable std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  Status outcome;
  Status gave_up;
  std::string last_stats = "{}";
};

namespace {

keys::SecurityChoice ChoiceOf(const ServerOptions& options) {
  return {.key_file = options.key_file,
          .insecure = options.insecure,
          .job = options.job,
          .role = crypto::Role::kServer,
          .cipher = options.cipher,
          .next_key_file = options.next_key_file,
          .allow = options.allow};
}

}  // namespace

// RTLD_NOW: what it lacks is found out here, not in a round. RTLD_LOCAL: two plug-ins may use the same names.
// Never closed: tensors and images name its rules for as long as any job lives. What it says of itself is
// looked at where all plug-ins of a server meet (codec::Rules::Add).
Result<const longhaul_plugin*> LoadPlugin(const std::string& file) {
  const auto bad = [&file](const std::string& why, StatusCode code = StatusCode::kInvalidArgument) {
    return Status(code, "plug-in " + file + ": " + why);
  };
  // A name alone would be looked for in the system's folders.
  const std::string path = file.find('/') == std::string::npos ? "./" + file : file;
  if (::access(path.c_str(), R_OK) != 0) return bad(std::strerror(errno), StatusCode::kNotFound);
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return bad(std::string("cannot be loaded: ") + ::dlerror());
  const auto get = reinterpret_cast<decltype(&longhaul_get_plugin)>(::dlsym(library, "longhaul_get_plugin"));
  if (get == nullptr)
    return bad("has no function longhaul_get_plugin (longhaul/plugin_api.h; in C++ it is extern \"C\")");
  return get();
}

Result<Server> Server::Start(const ServerOptions& options, std::function<void(const ServerEvent&)> on_event) {
  return server::Daemon::Start(options, std::move(on_event), nullptr);
}

Result<Server> server::Daemon::Start(const ServerOptions& given,
                                     std::function<void(const ServerEvent&)> on_event,
                                     const MakeGuests& make_guests, std::shared_ptr<LinkShare> link) {
  if (Status several = CheckSeveral(given); !several.ok()) return several;
  if (Status checkpoints = CheckCheckpoints(given); !checkpoints.ok()) return checkpoints;
  auto socket = Listen(given);  // first: the port is part of the server's name
  if (!socket.ok()) return socket.status();
  keys::SecurityChoice choice = ChoiceOf(given);
  choice.server_name = keys::ServerName(socket->local_address());
  auto security = keys::LoadSecurity(choice);
  if (!security.ok()) return security.status();
  auto impl = std::make_unique<Server::Impl>(std::move(on_event), given.log);
  // Its lock is taken before the directory's place in the job is: a second process would push the first one
  // out.
  std::optional<server::store::CheckpointWriter> writer;
  if (!given.checkpoint_dir.empty()) {
    auto opened =
        server::store::CheckpointWriter::Open(&SystemFiles(), given.checkpoint_dir, given.checkpoint_keep);
    if (!opened.ok()) return opened.status();
    writer.emplace(*std::move(opened));
  }
  auto placed = FindPlace(
      given, choice, socket->local_address().port,
      [calls = &impl->events.calls()](LogLevel level, const std::string& text) { calls->Log(level, text); });
  if (!placed.ok()) return placed.status();
  const ServerOptions& options = placed->options;
  auto core_options = MakeCoreOptions(options, placed->place, *security);
  if (!core_options.ok()) return core_options.status();
  core_options->settings.grants.link = std::move(link);
  impl->security = *std::move(security);
  choice.job = impl->security.job;
  impl->choice = std::move(choice);
  impl->world_size = options.workers;
  if (!options.fault.empty()) {
    auto faults = udp::ParseFaults(options.fault);
    if (!faults.ok()) return faults.status();
    impl->faults.emplace(*faults);
  }
  if (options.job_spec.fec_k > 0) {
    auto coder = codec::ErasureCodeLibrary::Create();
    if (!coder.ok()) return Status(StatusCode::kFailedPrecondition, coder.status().message());
    impl->fec_backend = codec::ErasureCodeLibrary::Description();
    impl->coder = std::move(*coder);
  }
  impl->address = socket->local_address();
  impl->once = options.once;
  if (!options.round_log) {
    impl->may_hand_over = {StatusCode::kFailedPrecondition,
                           "'round_log' is off: no server could go on with the job"};
  } else if (options.job_spec.downlink == Downlink::kLossy) {
    impl->may_hand_over = {StatusCode::kFailedPrecondition,
                           "with a lossy 'downlink' workers wait for no server"};
  }
  for (const std::string& warning : socket->warnings()) {
    impl->events.calls().Log(LogLevel::kWarning, warning);
  }

  SayMemory(core_options->settings, &impl->events.calls());
  core_options->events = &impl->events;
  if (make_guests) impl->guests = make_guests(core_options->settings);
  core_options->guests = impl->guests.get();
  if (writer) {
    auto checkpoints = server::CheckpointThread::Open(
        {.directory = options.checkpoint_dir,
         .job = core_options->settings.job,
         .settings = json(options.job_spec).dump(),
         .files = &SystemFiles(),
         .round_log = options.round_log,
         .world_size = options.workers},
        *std::move(writer), [&calls = impl->events.calls()](bool bad, const std::string& text) {
          calls.Log(bad ? LogLevel::kWarning : LogLevel::kInfo, text);
        });
    if (!checkpoints.ok()) return checkpoints.status();
    impl->checkpoints = *std::move(checkpoints);
    if (placed->place.map_epoch != 0) {
      const server::ServerPlace& place = placed->place;
      const Status written = server::store::WritePlace(SystemFiles(), options.checkpoint_dir,
                                                       {.map_epoch = place.map_epoch,
                                                        .server = place.server,
                                                        .servers = place.servers,
                                                        .start = placed->start});
      if (!written.ok()) return written;
    }
    core_options->images = impl->checkpoints.get();
    if (const auto resumed = impl->checkpoints->resumed()) core_options->settings.first_job = resumed->number;
  }
  impl->core = std::make_unique<server::ServerCore>(std::move(*core_options), impl->coder.get(),
                                                    Random(udp::EntropySeed()));
  if (impl->security.keys.size() > 1)
    impl->core->Reload(udp::Now(), impl->security.keys, RulesOf(impl->security));
  Server::Impl* raw = impl.get();
  auto loop =
      udp::EventLoop::Create(&impl->driven, std::move(*socket), impl->faults ? &*impl->faults : nullptr);
  if (!loop.ok()) return loop.status();
  impl->loop = std::move(*loop);
  if (raw->checkpoints) {
    const auto wake = [raw] { (void)raw->loop->Post([raw] { raw->OnKept(); }); };
    if (Status started = raw->checkpoints->Start(wake); !started.ok()) return started;
  }
  impl->events.on_job_over = [raw](const Status& outcome, const ServerStats& stats) {
    raw->OnJobOver(outcome, stats);
  };
  impl->events.on_hand_over = [raw] { (void)raw->RequestHandOver(); };
  if (placed->registration) {
    impl->events.calls().Log(LogLevel::kInfo, "this is server " + std::to_string(placed->place.server + 1) +
                                                  " of " + std::to_string(placed->place.servers) +
                                                  "; the first is " + options.first_server);
    impl->registration = std::move(placed->registration);
    impl->registration->OnEnd(
        [raw](const Status& why) { (void)raw->loop->Post([raw, why] { raw->GiveUp(why); }); });
    impl->registration->OnHandOver([raw] { (void)raw->RequestHandOver(); });
  }
  try {
    impl->thread = std::thread([raw] { raw->Run(); });
  } catch (const std::system_error& error) {
    return Status(StatusCode::kInternal, std::string("no thread for the server: ") + error.what());
  }
  return Server(std::move(impl));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::Server(Server&&) noexcept = default;
Server& Server::operator=(Server&& other) noexcept {
  if (this != &other) Impl::Release(std::exchange(impl_, std::move(other.impl_)));
  return *this;
}
Server::~Server() { Impl::Release(std::move(impl_)); }

uint16_t Server::port() const { return impl_ ? impl_->address.port : 0; }
std::string Server::address() const { return impl_ ? impl_->address.ToString() : ""; }
std::string Server::fec_backend() const { return impl_ ? impl_->fec_backend : ""; }
std::string Server::job() const { return impl_ ? impl_->security.job : ""; }
std::string Server::security() const { return impl_ ? impl_->security.description : ""; }

Status Server::Wait() {
  if (!impl_) return Moved();
  std::unique_lock lock(impl_->mutex);
  if (!impl_->stopped && UserCalls::InCallback()) {
    return {StatusCode::kFailedPrecondition, "the server runs; Wait waits: not from a callback"};
  }
  impl_->changed.wait(lock, [this] { return impl_->stopped; });
  return impl_->outcome;
}

std::optional<Status> Server::WaitFor(Duration timeout) {
  if (!impl_) return Moved();
  std::unique_lock lock(impl_->mutex);
  const Duration limit = UserCalls::InCallback() ? Duration(0) : std::min(timeout, kLongestWait);
  if (!impl_->changed.wait_for(lock, limit, [this] { return impl_->stopped; })) return std::nullopt;
  return impl_->outcome;
}

void Server::Stop() {
  if (!impl_) return;
  impl_->RequestStop();
  (void)Wait();
}

Status Server::Reload(const ServerOptions& options) {
  if (impl_->choice.insecure)
    return {StatusCode::kFailedPrecondition, "a server without keys has none to read again"};
  keys::SecurityChoice choice = impl_->choice;
  choice.key_file = options.key_file;
  choice.next_key_file = options.next_key_file;
  choice.allow = options.allow;
  auto loaded = keys::LoadSecurity(choice);
  if (!loaded.ok()) return loaded.status();
  if (loaded->kind != impl_->security.kind) {
    return {StatusCode::kFailedPrecondition, "the server runs with " + impl_->security.kind +
                                                 ", and 'key_file' is of " + loaded->kind +
                                                 ": that takes a restart"};
  }
  if (Status fits = loaded->allow.CheckWorldSize(impl_->world_size); !fits.ok()) return fits;
  if (impl_->registration) {
    auto own = keys::LoadSecurity(choice);  // keys are of one thread
    if (!own.ok()) return own.status();
    impl_->registration->SetKeys(std::move(own->keys));
  }
  // All of it is good: taken at once, in one event of the loop.
  return impl_->loop->Post([impl = impl_.get(), keys = std::move(loaded->keys), rules = RulesOf(*loaded)] {
    impl->core->Reload(udp::Now(), keys, rules);
  });
}

std::string Server::StatsJson() const {
  if (!impl_) return "{}";
  if (auto text = impl_->Ask([impl = impl_.get()] { return impl->StatsText(); }); text.ok()) return *text;
  const std::lock_guard lock(impl_->mutex);
  return impl_->last_stats;
}

Result<server::ServerStats> server::Daemon::Stats(const Server& server) {
  return server.impl_->Ask([impl = server.impl_.get()] { return impl->StatsNow(); });
}

bool server::Daemon::HandsOver(const Server& server) { return server.impl_->hands_over; }

void server::Daemon::BeginStop(const Server& server) { server.impl_->RequestStop(); }

Status server::Daemon::MayHandOver(const Server& server) {
  Server::Impl* const impl = server.impl_.get();
  if (!impl->may_hand_over.ok()) return impl->may_hand_over;
  const auto failing = impl->Ask([impl] { return impl->checkpoints->log_failing(); });
  if (!failing.ok()) return failing.status();
  return *failing ? Status(StatusCode::kFailedPrecondition,
                           "the round log cannot be written: rounds would be lost")
                  : Status();
}

Status server::Daemon::BeginHandOver(const Server& server) {
  if (Status may = MayHandOver(server); !may.ok()) return may;
  return server.impl_->RequestHandOver();
}

Status server::Daemon::TakesMembers(const Server& server) {
  const auto stopping = server.impl_->Ask([impl = server.impl_.get()] { return impl->stopping; });
  if (!stopping.ok()) return stopping.status();
  return *stopping ? Status(StatusCode::kFailedPrecondition, "the server is shutting down") : Status();
}

}  // namespace longhaul
