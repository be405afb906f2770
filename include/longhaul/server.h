// An embedded parameter server: the same one that longhaul-server runs.
//
//   auto server = longhaul::Server::Start({.listen = "127.0.0.1:0", .key_file = "job.key", .workers = 4});
//   if (!server.ok()) return server.status();
//   std::printf("workers connect to %s\n", server->address().c_str());
//   longhaul::Status outcome = server->Wait();  // with .once: until the job is over
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longhaul/job.h"
#include "longhaul/log.h"
#include "longhaul/plugin_api.h"
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
  // Shared keys only: a second key that is valid beside the first one, so that the members can move to it one
  // by one (see Reload). Empty: none.
  std::string next_key_file = {};
  // Certificates only: the workers and tools that may connect, by their names in `longhaul keygen --name`;
  // empty: all with a certificate of the authority for this job. An entry is
  //   [worker/|tool/]NAME[:RANKS[xWORKERS]][+SUCCESSOR]
  // "fra" is a worker and has one rank, any; "fra:0" that one, "nyc:1-3" any of three, "nyc:1x8" one that
  // stands for eight workers (a site's engine). "fra:0+fra2": worker fra2 may take rank 0 when fra is lost,
  // was kicked or has left. "tool/ops" asks for the status, kicks and generates load.
  std::vector<std::string> allow = {};
  // kAny: what the worker likes best.
  Cipher cipher = Cipher::kAny;
  // Instead of a key: any host on the path can read and forge the traffic. Only on loopback addresses,
  // unless insecure_bind says otherwise.
  bool insecure = false;
  bool insecure_bind = false;
  // Workers that a job has; it starts when all of them are in. 1..1024.
  uint32_t workers = 1;
  // With fewer workers than this a started job is aborted. 0: all of them; else 1..workers.
  uint32_t min_workers = 0;
  // A job starts when so many workers are in and no other has come for a second; those that come later take
  // part from then on (docs/howto/elastic_workers.md). 0: when all of them are in; else min_workers..workers.
  uint32_t start_workers = 0;
  // Workers with a lower incarnation, or none, are refused: they are of an earlier attempt of the job. 0:
  // none. Each of several servers takes its own.
  uint64_t min_incarnation = 0;
  // Servers of the job, 1..64: the tensors are cut and spread over them, and workers need the address of any
  // one. This is the first one; it lets workers in when the others are there, which are started with
  // `first_server` (docs/howto/several_servers.md).
  uint32_t servers = 1;
  // "HOST:PORT" of the job's first server: this is one of the others. It takes servers, workers, min_workers,
  // start_workers and job_spec from there; Start waits a minute for it at most. Empty: this is the first, or
  // the only one.
  std::string first_server = {};
  // "HOST:PORT" at which workers reach this server, one of several. Empty: for the first what workers were
  // given, for another its port at the address that it reaches the first one from.
  std::string advertise = {};
  // What its workers have to know: loss policy, priority, FEC, when windows close, ...
  JobSpec job_spec = {};
  // Bytes of UDP payload per datagram, 1200..65507. 1452 fits an MTU of 1500 with IPv6.
  uint32_t datagram_bytes = 1452;
  // With a key: handshakes that may be under way at once, half of them with one host, 2..65536. From a
  // quarter of them on newcomers must show first that they receive at their address.
  uint32_t max_half_open = 64;
  // One that is not finished by then gives its place up, 100 ms .. 60 s.
  Duration half_open_timeout = std::chrono::seconds(5);
  // Bound on 4 bytes x elements of all tensors. The server's memory grows with what is used of them: to three
  // times the model without an optimizer, five times with Adam, and once more for each older version that is
  // being pulled.
  ByteCount max_model{int64_t{1} << 30};
  // Bound on the bytes that the tensors' state may come to, whatever max_model: a tensor that may need more
  // than is left is refused when it is declared. Zero: seven eighths of what the machine and its limits have
  // at the start.
  ByteCount max_memory = {};
  // Directory of checkpoints: parameters and optimizer state as safetensors, in a thread of their own, so
  // that no round waits for the disk; made if it is not there. A server that finds one there gives its first
  // job the newest that is good, whatever initial values the workers have; a tensor of another shape is
  // refused at its declaration. Empty: none.
  std::string checkpoint_dir = {};
  // Rounds from one to the next, 1..1000000. Where the last one is still being written none is begun. One
  // more follows when the job is over or the server stops, unless that is in the middle of a round.
  uint32_t checkpoint_every = 100;
  // So many of the newest stay on the disk, 1..1000.
  uint32_t checkpoint_keep = 3;
  // With checkpoint_dir: every round is on the disk before any worker has its result, so that a server that
  // is killed and started again goes on with the job, and no worker loses a round (decision 0028). A round
  // lasts longer by a write of the values and the optimizer's state. Where that fails, training goes on
  // without it.
  bool round_log = false;
  // Optimizers and aggregations of the user's beside the built-in ones (longhaul/plugin_api.h): this
  // program's own, or a shared object's (LoadPlugin). Workers name an optimizer as they name a built-in one.
  // Every server of a job needs the same plug-ins.
  std::vector<const longhaul_plugin*> plugins = {};
  // How contributions become one value, by the name of a plug-in's aggregation: then job_spec's is kPlugin,
  // which need not be said. Empty: as job_spec says. The first of several servers tells the others.
  std::string plugin_aggregation = {};
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
  // Ends after the first job: Wait() then returns how it ended.
  bool once = false;
  // Faults to inject into this process' own traffic, for example "drop=0.02,delay=25ms,seed=7". Empty: none.
  std::string fault = {};
  // Called on any thread with a line for every event but rounds (those with kDebug), and with what no Status
  // says, such as a socket buffer that the system made smaller. Empty: nothing is logged.
  LogCallback log = {};
};

// What happens in a server. Called on the server's thread: must return soon. It may ask the server, stop it
// (Stop does not wait there) and destroy it; an exception that leaves it is logged, counted (callbacks_threw
// in the statistics) and ignored.
struct ServerEvent {
  enum class Kind : uint8_t {
    kJoin,        // a worker is in
    kStart,       // all workers are in
    kRound,       // a round is finished
    kLeave,       // a worker has left (code 0) or is lost
    kRefused,     // a join was refused or a handshake failed; after ten of a kind one every 10 s
    kBench,       // a load generator came or went
    kAbort,       // the job cannot go on
    kFinished,    // every worker has left orderly
    kRejected,    // a worker pushed NaN, infinity or too large values; they are not counted
    kLeftOut,     // a round went on without a live worker; after ten one every 10 s
    kWaiting,     // every 5 s of a wait: what waits for which workers
    kWeight,      // a worker's weight counts as less than it says (JobSpec::max_weight_share)
    kAccess,      // an operator has kicked a worker, or a certificate expires within a day
    kCheckpoint,  // a checkpoint is on the disk, or could not be written
    kServer,      // another server of the job is in, or is lost (code)
  };
  Kind kind = Kind::kJoin;
  // For logs and people: one line.
  std::string text;
  // The same with all values, as one JSON object: {"event":"join","rank":0,...}.
  std::string json;
};

// What a shared object has for ServerOptions::plugins; Server::Start looks at it. It stays loaded until the
// process ends, and its code has all rights of this process. Errors: kNotFound (no such file, or it may not
// be read), kInvalidArgument (no shared object for this machine, it needs what is not there, or it defines no
// longhaul_get_plugin).
Result<const longhaul_plugin*> LoadPlugin(const std::string& file);

namespace server {
struct Daemon;
}

// All methods from any thread, but a server must not be moved, assigned to or destroyed while another thread
// is in a method of it. One that was moved from does nothing: kFailedPrecondition, zeros, empty texts.
class Server {
 public:
  // Opens the port and serves in a thread of its own. Errors: kInvalidArgument (names the option, its value
  // and its range; content of the key file; a plug-in that cannot be), kVersionMismatch (a plug-in of another
  // version), kAlreadyExists (port in use; a plug-in's name is taken), kNotFound (no such host or key
  // file), kPermissionDenied (the key file belongs to another user, or its mode lets others use it, or its
  // key is of another job or role; a port below 1024 without the privilege), kUnavailable (this machine does
  // not have that address; no name server answers; another server writes to checkpoint_dir), kDataLoss (no
  // checkpoint there is good), kSettingsMismatch (they are of another job or server; the first server is of
  // another job), kFailedPrecondition (no FEC library; the first server has no place for this one), kInternal
  // (a system call failed).
  static Result<Server> Start(const ServerOptions& options,
                              std::function<void(const ServerEvent&)> on_event = nullptr);

  Server(Server&&) noexcept;
  Server& operator=(Server&&) noexcept;
  // Stops it, as Stop(). In one of its own callbacks it returns at once, and the server ends soon after.
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
  // Until the server has stopped: by Stop(), or after the first job with `once`. Ok, or why the latest job
  // did not finish: kAborted (the reason is named, such as too few workers), kCancelled (Stop while it ran).
  // In a callback of any client or server, before the end: kFailedPrecondition at once.
  Status Wait();
  // As Wait(), but gives up after `timeout` (in a callback: at once): nullopt, and the server goes on.
  std::optional<Status> WaitFor(Duration timeout);
  // Reads key_file and next_key_file again and takes `allow`, all of `options` that counts here, while the
  // job goes on: new connections are judged by them at once, and connections that they leave out (a dropped
  // key, an authority that is gone, a name that was struck out) end, each by name. Kicked members may come
  // back. To rotate a shared key: reload with the new one as next_key_file; let the workers reconnect with
  // it; reload with it as key_file. Any thread. Errors: as Start, and kFailedPrecondition (a server without
  // keys, another kind of key than before; the server has stopped). After an error all is as before.
  Status Reload(const ServerOptions& options);
  // Tells all workers and ends, within about a second; with checkpoint_dir it first lets the rounds in
  // progress end, 2 s at most, and then writes the last one, 20 s at most. Any thread; idempotent. In a
  // callback it does not wait for the end.
  void Stop();
  // Everything that it counts, as one JSON object. Any thread. After the end: the last state.
  std::string StatsJson() const;

 private:
  friend struct server::Daemon;
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace longhaul
