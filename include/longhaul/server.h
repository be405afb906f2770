// An embedded parameter server: the same one that longhaul-server runs.
//
//   auto server = longhaul::Server::Start({.listen = "127.0.0.1:0", .workers = 4, .key_file = "job.key"});
//   if (!server.ok()) return Report(server.status());
//   ... workers connect to server->port() ...
//   longhaul::Status outcome = server->Wait();       // with .once: until the job is over
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longhaul/status.h"
#include "longhaul/units.h"

namespace longhaul {

struct ServerOptions {
  // "HOST:PORT" or "[IPv6]:PORT"; port 0 takes any free one (see Server::port()).
  std::string listen = "127.0.0.1:7700";
  // Workers of another job are refused. Empty: the key's, and "default" without a key.
  std::string job = {};
  // Key of the job (`longhaul keygen`): a key that all of it share, or this server's certificate. The file
  // must be readable by its owner only.
  std::string key_file = {};
  // Certificates only: names of the workers and tools that may connect, as in `longhaul keygen --name`;
  // empty: all with a certificate of the authority for this job.
  std::vector<std::string> allow = {};
  // "aes-128-gcm", "aes-256-gcm" or "chacha20-poly1305"; empty: what the worker likes best.
  std::string cipher = {};
  // Instead of a key: traffic is readable and forgeable by everyone on its way. Only on loopback addresses,
  // unless insecure_bind says otherwise.
  bool insecure = false;
  bool insecure_bind = false;
  // Workers that a job has; it starts when all of them are in. 1..1024.
  uint32_t workers = 1;
  // With fewer workers than this a started job is aborted. 0: all of them; else 1..workers.
  uint32_t min_workers = 0;
  // What becomes of lost low-priority chunks: "zero", "count", "stale", "ipw" (those that arrived count by
  // the inverse of their worker's delivered share), "residual" (the worker adds what was lost to its next
  // gradient) or "shift" (a lost chunk counts as what its worker usually sends).
  std::string policy = "residual";
  // Step by which policy "shift" follows a worker's gradients, > 0 and <= 1.
  double shift_alpha = 0.1;
  // How chunks are ranked: "energy", "layer" (front of the tensor first) or "topk" (only the largest elements
  // travel; needs a policy that remembers the rest: residual or shift).
  std::string priority = "energy";
  // Share of a gradient's chunks, most important first, that travels reliably and with FEC, 0..1.
  double high_share = 0.2;
  // Above zero, and instead of high_share: as many chunks as hold this share of the gradient's energy, 0..1.
  double high_energy = 0;
  // With priority "topk": share of the elements that travels, > 0 and <= 1.
  double topk_share = 0.1;
  // Raw loss of a window's low class above which its losses are filled, 0..1.
  double bubble_threshold = 0.1;
  // Share of the energy of a window's low class that lets the window close when its high class is complete,
  // 0..1.
  double close_ratio = 0.9;
  // A worker that takes so many times as long as the others usually do is left out of the round; its gradient
  // counts in a later one. 0: every round waits for every worker. Else >= 1.
  double straggler_factor = 0;
  // No round waits longer than this for anybody; zero: no bound.
  Duration round_bound{0};
  // Sums contributions in rank order: bitwise equal results whatever the order of arrival. Costs memory for
  // every worker's contribution to unfinished chunks.
  bool deterministic = false;
  // Refuses a chunk whose norm is so many times what is usual for it; 0: none. Values that are not finite are
  // always refused.
  double norm_guard = 0;
  // "reliable", or "lossy": results may lose chunks on the way down, which the next round repays.
  std::string downlink = "reliable";
  // With a lossy downlink: every so many rounds everything is sent reliably, and a hash proves that all
  // workers have the same values. >= 1.
  uint32_t hash_rounds = 64;
  // Source symbols per FEC block: 8, 12, 16, 20 or 24; 0 turns FEC off.
  uint32_t fec_k = 20;
  // FEC blocks interleaved against bursts, 1..255; 0 = four times the mean burst that a connection sees.
  uint32_t fec_depth = 0;
  // A worker that is silent for so long is dead. 100 ms to 24 h.
  Duration idle_timeout = std::chrono::seconds(10);
  // Bytes of UDP payload per datagram, 1200..65507. 1452 fits an MTU of 1500 with IPv6.
  uint32_t datagram_bytes = 1452;
  // Bound on 4 bytes x elements of all tensors. The server's memory is about five times the model.
  ByteCount max_model{int64_t{1} << 30};
  // The server tells workers how fast to send, so that all of them together do not overflow its link.
  bool grants = true;
  // The rate of that link, IP headers included; zero: estimated from what arrives, within the bounds that
  // follow (zero: no bound). The estimate needs the first round in which workers queue together; what is
  // given holds from the first packet on.
  Bandwidth capacity = {};
  Bandwidth capacity_floor = {};
  Bandwidth capacity_cap = {};
  // No worker is granted more, nor less as far as the capacity goes; zero: no bound.
  Bandwidth worker_rate_cap = {};
  Bandwidth worker_rate_floor = {};
  // Of the job: workers rotate the send order of their chunks by it.
  uint64_t seed = 1;
  // Load generators (`longhaul bench flow`) that are served at once; their traffic is counted and dropped and
  // costs up to 64 MiB each. More are refused; 0 refuses all. 0..1024.
  uint32_t allow_bench = 16;
  // Serves load generators also while a job is running. Otherwise they are sent away when it starts.
  bool bench_during_job = false;
  // Ends after the first job: Wait() then returns how it ended.
  bool once = false;
  // Faults to inject into this process' own traffic, for example "drop=0.02,delay=25ms,seed=7". Empty: none.
  std::string fault;
};

// What happens in a server. Called on the server's thread: must return soon and must not call the server.
struct ServerEvent {
  enum class Kind : uint8_t {
    kJoin,      // a worker is in
    kStart,     // all workers are in
    kRound,     // a round is finished
    kLeave,     // a worker has left (code 0) or is lost
    kRefused,   // somebody was not let in, or did not get through the handshake; of each at most 10 a second
    kBench,     // a load generator came or went
    kAbort,     // the job cannot go on
    kFinished,  // every worker has left orderly
    kRejected,  // a worker pushed NaN, infinity or too large values; they are not counted
  };
  Kind kind = Kind::kJoin;
  // For logs and people: one line.
  std::string text;
  // The same with all values, as one JSON object: {"event":"join","rank":0,...}.
  std::string json;
};

class Server {
 public:
  // Opens the port and serves in a thread of its own. Errors: kInvalidArgument (names the option, its value
  // and its range), kAlreadyExists (port in use), kNotFound (no such host), kUnavailable (no FEC library),
  // kInternal.
  static Result<Server> Start(const ServerOptions& options,
                              std::function<void(const ServerEvent&)> on_event = nullptr);

  Server(Server&&) noexcept;
  Server& operator=(Server&&) noexcept;
  // Stops it, as Stop().
  ~Server();

  uint16_t port() const;
  // "127.0.0.1:7700", with the real port.
  std::string address() const;
  // The erasure-code backend in use, for example "isa_l_rs_cauchy"; "none" without FEC.
  std::string fec_backend() const;
  std::string job() const;
  // How traffic is protected, for people: "shared key of job resnet", "certificate server/ams of job resnet",
  // "insecure".
  std::string security() const;
  // Until the server has stopped: by Stop(), or after the first job with `once`. Ok, or why that job was
  // aborted.
  Status Wait();
  // As Wait(), but gives up after `timeout`: nullopt.
  std::optional<Status> WaitFor(Duration timeout);
  // Tells all workers and ends, within about a second. Any thread; idempotent.
  void Stop();
  // Everything that it counts, as one JSON object. Any thread. After the end: the last state.
  std::string StatsJson() const;

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace longhaul
