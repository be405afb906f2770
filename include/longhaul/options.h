// Options of the public API. Every field has a default that works, its unit, and what it costs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "longhaul/job.h"
#include "longhaul/log.h"
#include "longhaul/membership.h"
#include "longhaul/status.h"
#include "longhaul/tensor.h"
#include "longhaul/units.h"

namespace longhaul {

// Weights of contributions: near enough to each other that their sum and its inverse stay finite.
inline constexpr float kMinWeight = 1e-6f;
inline constexpr float kMaxWeight = 1e9f;

struct ConnectOptions {
  // "HOST:PORT" or "[IPv6]:PORT" of the parameter server, or of any one of a job that has several
  // (docs/howto/several_servers.md): exactly one.
  std::vector<std::string> servers = {};
  // Must be the server's; a worker of another job is refused. Empty: the key's, and "default" without a key.
  std::string job = {};
  // This worker among its peers, 0..world_size-1.
  uint32_t rank = 0;
  uint32_t world_size = 1;
  // Where this worker runs; for messages and statistics.
  std::string site = {};
  // None: a process that was started again takes its rank back when its predecessor no longer answers, within
  // one or two seconds. A higher number than the predecessor's takes it at once, also from a worker that
  // lives; a lower one is refused.
  std::optional<uint64_t> incarnation = std::nullopt;
  // Contributions are weighted by this, for example the number of samples behind each gradient:
  // kMinWeight..kMaxWeight. The server bounds what it counts as (JobSpec::max_weight_share).
  float weight = 1.0f;
  // The one time-out a user must know: a peer that is silent for so long is dead, and everything that waits
  // for it ends with kPeerDead. Progress resets it. The smaller one of worker and server counts.
  Duration idle_timeout = std::chrono::seconds(10);
  // How long Connect may take, 0..24 h; zero means idle_timeout.
  Duration connect_timeout{0};
  // How long Declare, Barrier and Pull wait for other workers, the start of the job included; then they end
  // with kDeadlineExceeded, which names who is missing. When for twice as long nothing that is pending has
  // moved, the client fails with the same. Zero: they wait for ever. Meanwhile `log` says every 5 s for whom.
  Duration wait_timeout = std::chrono::minutes(30);
  // How long this worker waits for its server to come back, 0..24 h. When the connection is lost after the
  // start of the job it connects again, once a second or as soon as that is refused, to what `servers` names
  // then; operations stay pending, and what the server has not acknowledged is sent again. It goes on with a
  // server that has the job's rounds (ServerOptions::round_log); one that has lost some is refused by name.
  // Zero: a lost server ends the job for this worker.
  Duration reconnect_timeout{0};
  // Directory for this worker's own state (Client::SaveState), made if its parent is there: files named after
  // its rank. A worker that is started again with it owes again what was saved as owed, unless a push has
  // begun since, and has its blob back (Client::LoadedState); what is damaged is not used, and `log` says so.
  // Another job needs another directory. Empty: nothing is kept.
  std::string state_dir = {};
  // Bytes of UDP payload per datagram, 1200..65507. 1452 fits an MTU of 1500 with IPv6.
  uint32_t datagram_bytes = 1452;
  // Decides how fast to send. The server's grant bounds all of them.
  RateControl rate_controller = RateControl::kLonghaul;
  // Never faster than the cap, which bounds UDP payload to all servers together; zero: no cap. Never slower
  // than the floor, whatever is lost; zero: 100 kbit/s.
  Bandwidth rate_cap = {};
  Bandwidth rate_floor = {};
  // Key of the job (`longhaul keygen`): a key that all of it share, or this worker's certificate. The file
  // must be readable by its owner only. Everything that is sent is encrypted and authenticated by it
  // (TLS 1.3, then AEAD).
  std::string key_file = {};
  // "unix:PATH" of this site's `longhaul-offload --server` (longhaul/offload.h), instead of `servers`: the
  // ranks of this machine are one member of the job. The sum of their gradients crosses the WAN once, the
  // result comes back once. What the site's connection decides is the site's: servers, job, rank, world_size,
  // key, rates and faults have no meaning here and must be as they are by default. Every rank declares every
  // tensor; a contribution waits for all ranks of the site that live.
  std::string offload = {};
  // With offload: this rank among those of its site. None: the first that is free.
  std::optional<uint8_t> site_rank = std::nullopt;
  // Instead of a key: traffic is protected against accidents only, readable and forgeable by everyone on its
  // way.
  bool insecure = false;
  // With a certificate: the name that the server's certificate must have (`longhaul keygen --name`). Empty:
  // any server's of the authority for this job.
  std::string server_name = {};
  // kAny: the first that both sides have.
  Cipher cipher = Cipher::kAny;
  // Faults to inject into this process' own traffic (transport/udp), for example "drop=0.02,seed=7". Empty:
  // none.
  std::string fault = {};
  // Seeds connection IDs and send-order permutations; zero: taken from the operating system.
  uint64_t seed = 0;
  // Called on any thread with what no Status says, such as a socket buffer that the system made smaller, or
  // for whom this worker waits.
  // Empty: nothing is logged; the library never writes to standard output or standard error.
  LogCallback log = {};
  // Called on a background thread with what Client::membership says, when other ranks are in than before: the
  // first time before Declare returns.
  MembershipCallback on_membership = {};
};

// What a worker's environment says: LONGHAUL_<OPTION> for the options of longhaul-worker that concern the
// connection, which that program sets for a command that it runs, then the variables of torchrun, Open MPI
// and ps-lite. LONGHAUL_INSECURE counts where its value is the address to join. Errors: kInvalidArgument, by
// name (also when no address is there).
Result<ConnectOptions> OptionsFromEnvironment();

struct TensorOptions {
  DType dtype = DType::kFloat32;  // of the values that are given and returned; float32 is what there is
  // Of gradients on their way to the server: float32, bfloat16, float16, int8, int4 or int2 (integers with a
  // scale for each chunk). Rounded stochastically; int4 and int2 to the nearest where the job's policy
  // remembers what a code misses (residual, shift).
  DType wire_dtype = DType::kFloat32;
  // Of results and of what is pulled, on their way back: float32, bfloat16 or float16, rounded to the
  // nearest. The server keeps float32; what it rounds away it does not forget. Datagrams are full where this
  // type is no shorter than wire_dtype. Both types are the same in all declarations of a tensor.
  DType result_dtype = DType::kFloat32;
  // Tensors with a lower one leave first; among equals, those declared first.
  int priority = 0;
  // Elements that always travel reliably, whatever their energy.
  struct Range {
    uint64_t first = 0;
    uint64_t count = 0;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> high_ranges = {};
  // This worker's own choice for this tensor of how many chunks are high, 0..1: a share of them, or as many
  // as hold a share of the energy; JobSpec::lost_energy may add to it. None: the job's, which the server
  // says.
  std::optional<double> high_share = std::nullopt;
  std::optional<double> high_energy = std::nullopt;
  uint64_t count = 0;  // elements, 1..2^40
  // What the server does with the aggregate: "aggregate" hands it back as it is; an optimizer keeps the
  // parameters and hands them back updated: "sgd:lr=0.1[,momentum=0.9][,nesterov][,weight_decay=0.0001]",
  // "adam:lr=0.001[,beta1=0.9][,beta2=0.999][,eps=1e-8][,weight_decay=0]", or "adamw:..." (decay 0.01).
  std::string optimizer = "aggregate";
  // Only this share of a gradient's elements travels, the largest; the others stay in this worker's memory
  // and are added to the next gradient. Above 0 and at most 1, the same in all declarations of the tensor;
  // needs a policy that remembers. None: the job's JobSpec::topk_share with priority topk, else all of them.
  std::optional<double> topk_share = std::nullopt;
  // In place of the job's JobSpec::staleness and quorum, for this tensor: the same in all declarations of it.
  std::optional<int32_t> staleness = std::nullopt;
  std::optional<uint32_t> quorum = std::nullopt;
  // Initial values (count elements) for tensors whose parameters live on the server; empty: zeros. Those of
  // exactly one worker are used; with several servers of one for each part. Borrowed until Declare returns.
  std::span<const float> initial = {};
};

struct PushOptions {
  // Of this contribution, kMinWeight..kMaxWeight: the samples, or tokens, since the last push of this tensor.
  // What it counts as the server bounds (JobSpec::max_weight_share). None: that of the connection
  // (ConnectOptions::weight), which is the only one with policy shift.
  std::optional<float> weight = std::nullopt;
};

struct PullOptions {
  // Waits until the tensor has completed at least so many rounds.
  uint64_t min_round = 0;
  // Waits until the values have every member's pushes up to this worker's own clock (Client::Clock) minus so
  // many. None: for no other worker.
  std::optional<uint32_t> max_staleness = std::nullopt;
};

}  // namespace longhaul
