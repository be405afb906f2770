// Collectives inside a datacenter by work requests and completions: a device takes requests like a network
// card, adds up what the ranks of its node have, exchanges the sums with the devices of other nodes and
// delivers the result to every rank.
//
//   auto device = offload::Device::Open("inproc:site", {.rank = 1, .site = {.ranks_per_node = 4}});
//   auto send = device->Register(gradient_bytes);
//   auto receive = device->Register(result_bytes);
//   offload::WorkRequest request{.wr_id = 7, .mid = 1, .length = n, .send = {*send}, .receive = {*receive}};
//   Status posted = device->Post({&request, 1});
//   offload::Completion done;
//   while (device->Poll({&done, 1}) == 0) {}
//
// Every accepted request ends in exactly one completion, by its deadline at the latest: `when it is done`, as
// the `answer` to a query, or as an `exception`. (kSend and kReceive have no deadline: a datagram ends when
// it has left or arrived, at the latest when the device closes.) When one is not kSuccess, the caller posts
// the message again with a higher generation, or gives up.
//
// Not for data that crosses between datacenters (longhaul/client.h is), nor for messages of a few bytes,
// which a function call between threads serves better.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "longhaul/stats.h"
#include "longhaul/status.h"
#include "longhaul/units.h"

namespace longhaul::offload {

// Values are stable: they travel between engines.
enum class ReduceOp : uint8_t {
  kSum = 0,
  kAverage = 1,  // the sum, divided by the number of contributing ranks at the end
  kProduct = 2,
  kXor = 3,  // of int32 and q32
  kMin = 4,
  kMax = 5,
};

enum class DataType : uint8_t {
  kFloat32 = 0,
  kBfloat16 = 1,
  kFloat16 = 2,
  kInt32 = 3,  // wraps around
  kQ32 = 4,    // fixed point in 32 bits; saturates
};

// Bytes of one element; zero for an unknown type.
constexpr size_t SizeOf(DataType type) {
  switch (type) {
    case DataType::kFloat32:
    case DataType::kInt32:
    case DataType::kQ32:
      return 4;
    case DataType::kBfloat16:
    case DataType::kFloat16:
      return 2;
  }
  return 0;
}

enum class Opcode : uint8_t {
  // Collectives: every rank of every node of the message posts one (or several, for ranges of segs).
  kAllReduce = 0,      // send: length bytes; receive: length bytes
  kReduce = 1,         // receive at the root rank only
  kReduceScatter = 2,  // receive: this rank's share of the segs (ShareOf)
  kBroadcast = 3,      // send at the root rank only; receive at all
  // Ordinary datagrams of at most one seg, to a rank; unordered, lost when that rank has no kReceive posted.
  kSend = 4,
  kReceive = 5,
  // About others.
  kConfig = 6,  // a job's configuration: of this device, or by packet of the device of node `root_node`
  kQuery = 7,   // how far the message (jid, mid) is, in mid-flight too
  kCancel = 8,  // ends the message (jid, mid) everywhere
};

// How a completion ended. Values are stable: they travel between engines.
enum class WorkStatus : uint8_t {
  kSuccess = 0,
  kBufferError = 1,      // no seg of the pool, or no memory for partial sums, until the deadline
  kLengthMismatch = 2,   // others have the message with another length; an ordinary datagram that is too long
  kOpMismatch = 3,       // ... with another operation, type, route or set of ranks
  kProtectionError = 4,  // memory that is not registered by this rank, too small, or not the one of before
  kBadRank = 5,          // the ranks do not contain this one, or a rank that the device does not have
  kBadNode = 6,          // the nodes do not contain this one, or more than the route can serve
  kTimeout = 7,          // the deadline; missing_ranks and missing_nodes say who was not there
  kPeerDead = 8,         // a rank or node of the message or job has died: missing_ranks, missing_nodes
  kOverflow = 9,         // the device has no room for another message or job
  kCancelled = 10,       // by kCancel of one of its ranks
  kFlushed = 11,         // the device closed, or that attempt at the message is over
  kPartial = 12,         // done, without missing_ranks or missing_nodes (kAllowPartial)
};

// "success", "buffer_error", ...; "unknown" for anything else.
std::string_view WorkStatusName(WorkStatus status);

// Why there is a completion.
enum class Reason : uint8_t { kDone = 0, kQuery = 1, kException = 2 };

// How the sums of several nodes meet.
enum class Route : uint8_t {
  kRing = 0,  // from node to node, each adds its own; at most 16 nodes; needs no aggregator
  kTree = 1,  // every node to the root, which broadcasts; the root may be a device without ranks
};

// What a node of a ring does when the sum that it waits for is late (docs/explanation/ring.md). Every node is
// in the result exactly once, whatever the policy. Only an all-reduce goes on without a late node: of others
// some node could end that a late sum still needs.
enum class StragglerPolicy : uint8_t {
  kOff = 0,         // waits
  kSeedSkip = 1,    // one skip, after JobConfig::skip_after
  kCascade = 2,     // every node has a learned deadline; late sums go to the first node that still waits
  kSelfSkip = 3,    // cascade, and a node whose own ranks are late goes on without them
  kLeafDemote = 4,  // self_skip, and a node that is late again and again is not waited for
};

// A job: who takes part, and how. At most 16 jobs at a time.
struct JobConfig {
  // Bit per node. One that dies is out of the job until it is configured anew, at all nodes: what is under
  // way ends as kPeerDead, later requests go on without it if they allow that (kAllowPartial).
  uint64_t nodes = 1;
  uint64_t ranks =
      ~uint64_t{0};  // bit per rank of this node; those that the device does not have are ignored
  Route route = Route::kRing;
  uint8_t root_node = 0;  // of a tree
  StragglerPolicy policy = StragglerPolicy::kCascade;
  Duration skip_after{0};  // kSeedSkip: alpha * T + Ttrans, after the node before has usually begun
  Duration deadline = std::chrono::seconds(10);  // of requests that name none; at most a year counts
};

// `offset` bytes into a registered region.
struct MemorySlice {
  uint32_t key = 0;  // from Register; 0: no memory
  uint64_t offset = 0;
};

struct WorkRequest {
  // Sums are made in one order, whatever the timing: of nodes along the route, of ranks within a node. Turns
  // the straggler policy off.
  static constexpr uint8_t kDeterministic = 1;
  // At the deadline, or when a rank has died, or a node before the message began, the result is made of what
  // is there: kPartial. (A reduce-scatter, and what has a dead root, needs all nodes.)
  static constexpr uint8_t kAllowPartial = 2;
  static constexpr uint8_t kAllFlags = kDeterministic | kAllowPartial;

  static constexpr uint8_t kThisNode = 255;

  uint64_t wr_id = 0;  // the caller's; comes back in the completion
  Opcode opcode = Opcode::kAllReduce;
  ReduceOp op = ReduceOp::kSum;
  DataType type = DataType::kFloat32;
  uint8_t flags = 0;
  uint8_t root_node =
      0;  // kReduce, kBroadcast: the root's; kSend: the receiver's; kConfig: the device's, or kThisNode
  uint8_t root_rank = 0;
  uint16_t jid = 0;
  uint32_t mid = 0;         // the message; each is used once, within 1024 of the newest
  uint32_t generation = 0;  // attempt at the message: higher when it is posted again after a failure
  // This rank's data of these segs is ready (0 segs: to the end); a message may be posted piece by piece.
  uint32_t first_seg = 0;
  uint32_t seg_count = 0;
  uint64_t nodes = 0;     // 0: the job's; those that are out of it are not waited for: kPartial or kPeerDead
  uint64_t ranks = 0;     // 0: the job's; ranks of this node
  uint64_t length = 0;    // bytes of the whole message, a multiple of the type's size
  MemorySlice send = {};  // first byte of the whole message
  MemorySlice receive = {};
  Duration deadline{0};  // from now on, at most a year counts; 0: the job's; not of kSend, kReceive
  const JobConfig* config = nullptr;  // kConfig; read by Post
};

struct Completion {
  uint64_t wr_id = 0;
  WorkStatus status = WorkStatus::kSuccess;
  Reason reason = Reason::kDone;
  Opcode opcode = Opcode::kAllReduce;
  uint16_t jid = 0;
  uint32_t mid = 0;
  uint32_t segs_done = 0;  // of the message
  uint32_t segs_total = 0;
  uint64_t missing_ranks = 0;  // of this node, in what is done or for what is not
  uint64_t missing_nodes = 0;  // not in the result; while there is none: whose data has not come here
  uint64_t bytes = 0;          // of the message that are done; of an ordinary datagram
  uint8_t source_node = 0;     // kReceive: whose device has sent it, as the devices know
  uint8_t source_rank = 0;
  Duration elapsed{0};  // from Post
};

// One device since it opened; kOffloadCounters says what each counter means.
struct OffloadStats {
  uint64_t requests = 0;
  uint64_t requests_refused = 0;
  uint64_t completions = 0;
  uint64_t exceptions = 0;
  uint64_t messages_done = 0;
  uint64_t messages_failed = 0;
  uint64_t segs_done = 0;
  uint64_t bytes_reduced = 0;
  uint64_t bursts = 0;
  uint64_t packets_sent = 0;
  uint64_t packets_received = 0;
  uint64_t retransmissions = 0;
  uint64_t duplicates = 0;
  uint64_t overlaps_refused = 0;
  uint64_t mismatches = 0;
  uint64_t stale_generations = 0;
  uint64_t foreign_packets = 0;
  uint64_t damaged_packets = 0;
  uint64_t packets_refused = 0;
  uint64_t begins_refused = 0;
  uint64_t pool_exhausted = 0;
  uint64_t sends_deferred = 0;
  uint64_t answers_dropped = 0;
  uint64_t orphans = 0;
  uint64_t skips = 0;
  uint64_t redirects = 0;
  uint64_t passed_on = 0;
  uint64_t self_skips = 0;
  uint64_t demotions = 0;
  uint64_t nodes_lost = 0;
  uint64_t ordinary_sent = 0;
  uint64_t ordinary_received = 0;
  uint64_t ordinary_dropped = 0;
  uint32_t segs_in_use = 0;
  uint32_t segs_most = 0;
};

inline constexpr std::array<Counter<OffloadStats>, 35> kOffloadCounters = {{
    {&OffloadStats::requests, "requests", "work requests that were accepted"},
    {&OffloadStats::requests_refused, "requests_refused", "work requests that Post returned as bad"},
    {&OffloadStats::completions, "completions", "completions, exceptions included"},
    {&OffloadStats::exceptions, "exceptions", "completions that name an exception"},
    {&OffloadStats::messages_done, "messages_done", "messages whose every seg is done"},
    {&OffloadStats::messages_failed, "messages_failed", "messages that ended otherwise"},
    {&OffloadStats::segs_done, "segs_done", "segs that are delivered and passed on"},
    {&OffloadStats::bytes_reduced, "bytes_reduced", "bytes that went into sums, of ranks and packets"},
    {&OffloadStats::bursts, "bursts", "calls of a reduction; short segs are coalesced"},
    {&OffloadStats::packets_sent, "packets_sent", "packets to other engines, answers included"},
    {&OffloadStats::packets_received, "packets_received", "packets of other engines that were read"},
    {&OffloadStats::retransmissions, "retransmissions", "segs that were sent again"},
    {&OffloadStats::duplicates, "duplicates", "contributions that were in already, and not added again"},
    {&OffloadStats::overlaps_refused, "overlaps_refused", "sums of which a part was in already: not added"},
    {&OffloadStats::mismatches, "mismatches", "requests and packets that disagree with their message"},
    {&OffloadStats::stale_generations, "stale_generations", "packets of another attempt at a message"},
    {&OffloadStats::foreign_packets, "foreign_packets", "datagrams of others, passed on unchanged"},
    {&OffloadStats::damaged_packets, "damaged_packets", "packets with a wrong checksum, passed on unchanged"},
    {&OffloadStats::packets_refused, "packets_refused", "packets that fit no message, job or place in it"},
    {&OffloadStats::begins_refused, "begins_refused",
     "packets of messages that no rank here has posted, when those have their share, or have ended as "
     "orphans"},
    {&OffloadStats::pool_exhausted, "pool_exhausted", "packets that found no free seg; they come again"},
    {&OffloadStats::sends_deferred, "sends_deferred",
     "sends that wait for their timer, the queue being full"},
    {&OffloadStats::answers_dropped, "answers_dropped", "answers that found their queue full"},
    {&OffloadStats::orphans, "orphans", "messages of other nodes that no rank here has joined in time"},
    {&OffloadStats::skips, "skips", "segs that were sent on without a late node's sum"},
    {&OffloadStats::redirects, "redirects",
     "late sums that were sent to another node, the first having no room"},
    {&OffloadStats::passed_on, "passed_on", "late sums that were sent on as they were"},
    {&OffloadStats::self_skips, "self_skips", "segs that were sent on without the ranks here"},
    {&OffloadStats::demotions, "demotions", "segs whose ring passed over a demoted node"},
    {&OffloadStats::nodes_lost, "nodes_lost", "nodes that a job goes on without, since they died"},
    {&OffloadStats::ordinary_sent, "ordinary_sent", "ordinary datagrams that left or were delivered here"},
    {&OffloadStats::ordinary_received, "ordinary_received", "ordinary datagrams delivered to a rank"},
    {&OffloadStats::ordinary_dropped, "ordinary_dropped", "ordinary datagrams without a place to go"},
    {&OffloadStats::segs_in_use, "segs_in_use", "segs of the pool that hold something now"},
    {&OffloadStats::segs_most, "segs_most", "the most that ever did"},
}};

// What the devices of one site have in common.
struct SiteOptions {
  uint8_t nodes = 1;           // 1..16
  uint8_t ranks_per_node = 1;  // 1..64
  bool aggregator = false;     // one more device, without ranks, as node `nodes`
  uint32_t seg_bytes = 1024;   // 64..8192, a multiple of 64; what a packet carries
  uint32_t pool_segs = 512;    // per device: at most 65534, at least 2 for each node, an aggregator included
  uint32_t window_segs = 128;  // 1..512: segs of a message that are on their way between nodes
  uint32_t queue_depth = 256;  // 1..65536: requests of a rank that are not completed and polled
  uint64_t max_message_bytes = uint64_t{1} << 30;
  uint64_t scratch_bytes = uint64_t{256} << 20;  // for partial sums where no rank has memory for the result

  friend bool operator==(const SiteOptions&, const SiteOptions&) = default;
};

struct DeviceOptions {
  // The one node that a daemon has (of several: the first), whichever number it has: Device::node().
  static constexpr uint8_t kDaemonsNode = 255;

  uint8_t node = 0;
  uint8_t rank = 0;
  SiteOptions site = {};  // the same for all who open that site
};

// Segs of a message of that length: the last one may be shorter.
constexpr uint64_t SegCount(uint64_t length, uint32_t seg_bytes) {
  return length / seg_bytes + (length % seg_bytes != 0);
}

// The bytes of a reduce-scatter that belong to share `index` of `count`: whole segs, the last may have fewer.
struct Share {
  uint64_t offset = 0;
  uint64_t length = 0;
};
Share ShareOf(uint64_t length, uint32_t seg_bytes, uint32_t index, uint32_t count);

class Port;

// Memory that a rank and its device share.
struct Allocation {
  uint32_t key = 0;
  std::span<std::byte> memory;
};

// One rank's end of a device. Every method may be called from any thread. Nothing of an open device is waited
// for: Post and Poll return at once, and do a bounded share of the device's work.
//
// Through a daemon: when it ends, in order or not, what is pending is completed as kFlushed and fd() becomes
// readable; after that calls return kPeerDead. Calls that ask it (Open, Register, Allocate, Deregister,
// stats, Close) wait for its answer for at most 5 s: kDeadlineExceeded.
class Device {
 public:
  // where: "inproc:NAME", a site in this process that lives as long as a device of it is open; or
  // "unix:PATH", that of the longhaul-offload which listens on that socket (default SiteOptions: whatever
  // that site has). Errors: kInvalidArgument (options), kAlreadyExists (the rank is open), kSettingsMismatch
  // (the site has other options), kResourceExhausted (no memory), kUnavailable (no daemon there),
  // kPermissionDenied, kVersionMismatch (of the daemon), kInternal (a system call).
  static Result<Device> Open(std::string_view where, const DeviceOptions& options);
  Device(Device&&) noexcept;
  Device& operator=(Device&&) noexcept;
  // Closes.
  ~Device();

  // Memory for requests of this rank, until Deregister or Close; the device reads and writes it while they
  // are pending. Errors: kInvalidArgument (no bytes), kResourceExhausted (1024 regions), kFailedPrecondition
  // (closed).
  Result<uint32_t> Register(std::span<std::byte> memory);
  // `bytes` of zeros, registered. Through a daemon, requests of them copy nothing, while those of memory that
  // Register has taken are copied: what is sent by Post, what is received by Poll. shared_name: all ranks of
  // a daemon's site that give the same name (of at most 63 bytes) have the same memory, for example of a
  // result that is the same for all. Lives until Deregister or the end of this device, whatever the daemon
  // does. Errors: kInvalidArgument (no bytes; a name that is too long, has memory of another size, or means
  // nothing to this kind of device), kResourceExhausted (no memory; the rank's share of it, or of regions).
  Result<Allocation> Allocate(uint64_t bytes, std::string_view shared_name = {});
  // Errors: kNotFound, kFailedPrecondition (a pending message or datagram uses it).
  Status Deregister(uint32_t key);

  // Takes requests in order until one cannot be: that one's error, and its index in *bad (if not null). What
  // else is wrong with a request its completion tells. Errors: kInvalidArgument (no such opcode, flag,
  // route or policy; kConfig without config), kResourceExhausted (queue_depth), kFailedPrecondition (closed).
  Status Post(std::span<const WorkRequest> requests, size_t* bad = nullptr);
  // Takes the completions that are there, oldest first, and says how many.
  size_t Poll(std::span<Completion> completions);
  // The next completion makes fd() readable; at once when one is there. One request, one notification.
  Status RequestNotify();
  // For poll(2) and its like; owned by the device. Readable also when the device has work to do: call Poll.
  int fd() const;

  // The same as posting kConfig, kQuery, kCancel.
  Status Configure(uint16_t jid, const JobConfig& config, uint64_t wr_id = 0);
  Status Query(uint16_t jid, uint32_t mid, uint64_t wr_id = 0);
  Status Cancel(uint16_t jid, uint32_t mid, uint64_t wr_id = 0);

  // As the site is open; what it was opened with may be the default.
  SiteOptions site() const;
  uint8_t node() const;
  // Of the device, that is of all ranks of the node.
  OffloadStats stats() const;
  // Everything that is pending ends as kFlushed and may still be polled; for the others this rank has died.
  void Close();

 private:
  explicit Device(std::unique_ptr<Port> port);
  std::unique_ptr<Port> port_;
};

}  // namespace longhaul::offload
