// One connection between a worker and a server: the coordinator that owns the parts (recovery, rate, windows,
// control stream) and routes events between them. Sans-I/O: made and driven by an Endpoint.
//
// Handshake: INIT (client) -> ACCEPT (server) -> first short packet. See docs/reference/wire_format.md and
// handshake.h. Every connection ends: event::Closed comes exactly once with a named reason, at the latest one
// idle time-out after the peer was last heard.
//
// Not thread-safe. What happens is polled (Endpoint::PollEvent); a connection calls nothing of its owner.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/address.h"
#include "base/instant.h"
#include "base/random.h"
#include "codec/fec/erasure_coder.h"
#include "longhaul/stats.h"
#include "longhaul/status.h"
#include "longhaul/units.h"
#include "proto/frames.h"
#include "proto/packet_header.h"
#include "transport/core/rate/rate_controller.h"
#include "transport/core/security/key_update.h"
#include "transport/core/security/security.h"
#include "transport/core/window/window_types.h"

namespace longhaul::transport {

// Bytes of a window with as many chunks as one may have: for owners that bound tensors, not windows.
constexpr ByteCount LargestWindow(ByteCount max_datagram) {
  return ByteCount(int64_t{wire::kMaxWindowChunks} * max_datagram.value());
}

struct ConnectionOptions {
  // UDP payload; 1200 is what every path carries. 1452 for Ethernet, 1344 under a VPN, 8952 with jumbo
  // frames: what the path really carries is found out (transport/core/path/dplpmtud.h).
  ByteCount max_datagram{1452};
  Duration idle_timeout = std::chrono::seconds(10);
  Duration handshake_timeout =
      Duration::max();  // bound on the time until connected, if shorter than idle_timeout
  // A PING leaves after this much silence while the application wants the connection alive.
  Duration keepalive = std::chrono::seconds(2);
  ByteCount receive_window{64 << 20};  // bound on the peer's bytes in flight towards us
  uint32_t max_open_windows = 64;      // incoming windows open at once
  ByteCount max_window_bytes{int64_t{1} << 30};
  ByteCount max_control_backlog{4 << 20};  // unacknowledged control bytes; more is refused by SendControl
  // Server: until the owner calls Connection::Admit a peer gets no windows, and the bounds of kWary hold for
  // its control stream, to bound the memory of peers that have not joined.
  bool wary = false;
  // Server: follow a worker whose address changes (a rebound NAT), after the new address has proved itself.
  // Unless said otherwise only when packets are authenticated by keys: without, any reader of one could
  // move the connection to its own address.
  std::optional<bool> allow_migration;
  // Mark datagrams as ECN-capable, once the path carries the marks (transport/core/path/ecn_validator.h).
  bool ecn = true;
  KeyUpdateLimits key_update;
  RateOptions rate;
};

// What is kept for a peer that is not admitted (ConnectionOptions::wary).
struct WaryLimits {
  size_t control_received = 16 * 1024;  // out of order, or before we are connected
  size_t control_pieces = 64;
  size_t control_backlog = 128 * 1024;
};
inline constexpr WaryLimits kWary;

// Counters since the start; every drop, retransmission and repair is in here. kConnectionCounters says what
// each one means.
struct ConnectionStats {
  uint64_t packets_sent = 0;
  uint64_t packets_received = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t chunk_bytes_sent = 0;
  uint64_t chunk_bytes_received = 0;
  uint64_t packets_lost = 0;
  uint64_t packets_spurious = 0;
  uint64_t retransmissions = 0;
  uint64_t repairs_sent = 0;
  uint64_t repairs_received = 0;
  uint64_t chunks_cut = 0;
  uint64_t chunks_joined = 0;
  uint64_t parts_refused = 0;
  uint64_t half_chunks_dropped = 0;
  uint64_t chunks_repaired = 0;
  uint64_t chunks_refused = 0;
  uint64_t events_dropped = 0;
  uint64_t low_chunks_lost = 0;
  uint64_t duplicates_dropped = 0;
  uint64_t bad_tag_dropped = 0;
  uint64_t malformed_dropped = 0;
  uint64_t unknown_window_dropped = 0;
  uint64_t late_dropped = 0;
  uint64_t not_admitted_dropped = 0;
  uint64_t numbers_skipped = 0;
  uint64_t acks_refused = 0;
  uint64_t pto_fired = 0;
  uint64_t host_stalls = 0;
  uint64_t nacks_sent = 0;
  uint64_t nacks_received = 0;
  uint64_t nacks_ignored = 0;
  uint64_t refusals = 0;
  uint64_t windows_opened = 0;
  uint64_t windows_closed = 0;
  uint64_t host_drops = 0;
  uint64_t migrations = 0;
  uint64_t ports_taken = 0;
  uint64_t path_candidates = 0;
  uint64_t path_challenges = 0;
  uint64_t path_timeouts = 0;
  uint64_t path_refused = 0;
  uint64_t candidate_dropped = 0;
  uint64_t handshake_flights = 0;
  uint64_t retries = 0;
  uint64_t refusals_ignored = 0;
  uint64_t key_refusals = 0;
  uint64_t answers_failed = 0;
  uint64_t before_keys_dropped = 0;
  uint64_t key_updates = 0;
  uint64_t peer_key_updates = 0;
  uint64_t wrong_id_dropped = 0;
  std::string_view cipher;
  std::string_view ecn_state;
  uint64_t ecn_ce = 0;
  uint64_t mtu_probes_sent = 0;
  uint64_t mtu_probes_lost = 0;
  uint64_t black_holes = 0;
  Duration smoothed_rtt{0};
  Duration min_rtt{0};
  Duration latest_rtt{0};
  ByteCount bytes_in_flight;
  double loss = 0;
  double loss_for_fec = 0;
  double loss_correlation = 0;
  double mean_loss_burst = 1;
  uint32_t fec_depth = 0;
  uint64_t packets_expected = 0;
  Duration incoming_queue{0};
  Duration host_delay{0};
  Duration host_delay_max{0};
  RateSnapshot rate;
  // For how long each RateLimiter held the sending back, from the handshake to the latest event. Time in
  // which nothing did (a batch was full) is in none.
  std::array<Duration, kRateLimiters> limited{};
};

inline constexpr Counter<ConnectionStats> kConnectionCounters[] = {
    {&ConnectionStats::packets_sent, "packets_sent", "packets sent"},
    {&ConnectionStats::packets_received, "packets_received", "packets received"},
    {&ConnectionStats::bytes_sent, "bytes_sent", "UDP payload sent"},
    {&ConnectionStats::bytes_received, "bytes_received", "UDP payload received"},
    {&ConnectionStats::chunk_bytes_sent, "chunk_bytes_sent", "chunk bytes, first transmissions"},
    {&ConnectionStats::chunk_bytes_received, "chunk_bytes_received",
     "bytes of distinct chunks delivered, repaired ones included"},
    {&ConnectionStats::packets_lost, "packets_lost", "own packets declared lost, before FEC"},
    {&ConnectionStats::packets_spurious, "packets_spurious", "of them, acknowledged later"},
    {&ConnectionStats::retransmissions, "retransmissions", "high chunks sent again"},
    {&ConnectionStats::repairs_sent, "repairs_sent", "repair symbols (FEC) sent"},
    {&ConnectionStats::repairs_received, "repairs_received", "repair symbols received"},
    {&ConnectionStats::chunks_cut, "chunks_cut",
     "chunks and repair symbols that left in parts: the path carries less than they need"},
    {&ConnectionStats::chunks_joined, "chunks_joined", "chunks and repair symbols that came in parts"},
    {&ConnectionStats::parts_refused, "parts_refused",
     "parts beyond the bound of what is half-done: not acknowledged"},
    {&ConnectionStats::half_chunks_dropped, "half_chunks_dropped",
     "low chunks that lacked a part and gave room to others"},
    {&ConnectionStats::chunks_repaired, "chunks_repaired", "chunks rebuilt by FEC here"},
    {&ConnectionStats::chunks_refused, "chunks_refused", "chunks delivered here, but not taken by the owner"},
    {&ConnectionStats::events_dropped, "events_dropped",
     "events beyond the bound of the queue: the connection ends"},
    {&ConnectionStats::low_chunks_lost, "low_chunks_lost",
     "low chunks of closed outgoing windows that the peer did not take"},
    {&ConnectionStats::duplicates_dropped, "duplicates_dropped",
     "packets received twice, or chunks that were here already"},
    {&ConnectionStats::bad_tag_dropped, "bad_tag_dropped", "packets whose authentication tag does not fit"},
    {&ConnectionStats::malformed_dropped, "malformed_dropped", "packets that cannot be parsed"},
    {&ConnectionStats::unknown_window_dropped, "unknown_window_dropped",
     "DATA before its OPEN and beyond the bound of what is buffered"},
    {&ConnectionStats::late_dropped, "late_dropped", "DATA of a closed window"},
    {&ConnectionStats::not_admitted_dropped, "not_admitted_dropped",
     "DATA and windows of a peer that is not, or no longer, admitted"},
    {&ConnectionStats::numbers_skipped, "numbers_skipped",
     "packet numbers left out, which no honest peer acknowledges"},
    {&ConnectionStats::acks_refused, "acks_refused",
     "ACK of what was never sent or of a number left out: the connection ends"},
    {&ConnectionStats::pto_fired, "pto_fired", "probe timeouts"},
    {&ConnectionStats::host_stalls, "host_stalls", "timers more than 250 ms late: this host stood still"},
    {&ConnectionStats::nacks_sent, "nacks_sent", "WINDOW_NACK sent"},
    {&ConnectionStats::nacks_received, "nacks_received", "WINDOW_NACK received that queued something"},
    {&ConnectionStats::nacks_ignored, "nacks_ignored", "WINDOW_NACK again within a round trip"},
    {&ConnectionStats::refusals, "refusals", "REFUSE: the server answered, and that it takes no connection"},
    {&ConnectionStats::windows_opened, "windows_opened", "windows opened by this side"},
    {&ConnectionStats::windows_closed, "windows_closed", "of them, closed"},
    {&ConnectionStats::host_drops, "host_drops", "packets dropped by the peer's socket, as it reports"},
    {&ConnectionStats::migrations, "migrations", "times that the peer's address changed"},
    {&ConnectionStats::ports_taken, "ports_taken", "source ports taken because the server was silent"},
    {&ConnectionStats::path_candidates, "path_candidates", "other addresses that spoke for the peer"},
    {&ConnectionStats::path_challenges, "path_challenges", "path challenges sent to them"},
    {&ConnectionStats::path_timeouts, "path_timeouts", "of these, addresses that did not answer"},
    {&ConnectionStats::path_refused, "path_refused", "datagrams from addresses beyond the bound"},
    {&ConnectionStats::candidate_dropped, "candidate_dropped",
     "datagrams that only made an address a candidate"},
    {&ConnectionStats::handshake_flights, "handshake_flights",
     "flights of long packets that this side began to send, repetitions included"},
    {&ConnectionStats::retries, "retries", "client: RETRY that was followed"},
    {&ConnectionStats::key_refusals, "key_refusals",
     "REFUSE: the server cannot open what this side sends; its key may be another one"},
    {&ConnectionStats::answers_failed, "answers_failed",
     "client: ACCEPTs that no server with a key of ours has sent, or that were damaged on purpose"},
    {&ConnectionStats::refusals_ignored, "refusals_ignored",
     "client: REFUSE or CLOSE of the handshake that authentic packets refuted"},
    {&ConnectionStats::before_keys_dropped, "before_keys_dropped",
     "short packets before the handshake was complete"},
    {&ConnectionStats::key_updates, "key_updates", "key updates that this side began"},
    {&ConnectionStats::peer_key_updates, "peer_key_updates", "changes of the peer's keys"},
    {&ConnectionStats::wrong_id_dropped, "wrong_id_dropped",
     "long packets of another connection of the same peer"},
    {&ConnectionStats::cipher, "cipher", "of the packets; empty without keys"},
    {&ConnectionStats::ecn_state, "ecn_state", "off, testing, unknown, capable or failed"},
    {&ConnectionStats::ecn_ce, "ecn_ce", "own packets marked Congestion Experienced, as the peer reports"},
    {&ConnectionStats::mtu_probes_sent, "mtu_probes_sent", "path-MTU probes sent, without INITs"},
    {&ConnectionStats::mtu_probes_lost, "mtu_probes_lost",
     "path-MTU probes lost; in none of the counters of loss"},
    {&ConnectionStats::black_holes, "black_holes",
     "times that the path began to swallow large datagrams, or seemed to"},
    {&ConnectionStats::smoothed_rtt, "smoothed_rtt", "smoothed round-trip time"},
    {&ConnectionStats::min_rtt, "min_rtt", "smallest round-trip time"},
    {&ConnectionStats::latest_rtt, "latest_rtt", "latest round-trip time"},
    {&ConnectionStats::bytes_in_flight, "bytes_in_flight", "sent and neither acknowledged nor lost"},
    {&ConnectionStats::loss, "loss", "recent raw loss of what is sent, 0..1"},
    {&ConnectionStats::loss_for_fec, "loss_for_fec", "loss with its margin, by which FEC is planned, 0..1"},
    {&ConnectionStats::loss_correlation, "loss_correlation", "rho of 20 consecutive packets, 0..0.5"},
    {&ConnectionStats::mean_loss_burst, "mean_loss_burst", "packets lost in a row"},
    {&ConnectionStats::fec_depth, "fec_depth", "blocks interleaved by a window that leaves the depth open"},
    {&ConnectionStats::packets_expected, "packets_expected",
     "packets sent by the peer, by the largest number received less the usual share of numbers left out"},
    {&ConnectionStats::incoming_queue, "incoming_queue", "standing queue on the way here"},
    {&ConnectionStats::host_delay, "host_delay",
     "mean time of the last one to two seconds that packets waited at this host to be read"},
    {&ConnectionStats::host_delay_max, "host_delay_max", "of these, the longest"},
};

class Connection {
 public:
  enum class State : uint8_t { kConnecting, kConnected, kClosing, kClosed };

  virtual ~Connection() = default;

  // --- Questions ---
  virtual State state() const = 0;
  virtual wire::ConnectionId local_id() const = 0;
  virtual Address peer() const = 0;
  // The identity that the peer has proved; kNone before that and without security.
  virtual const PeerIdentity& identity() const = 0;
  virtual ConnectionStats stats() const = 0;
  // Zero before the first sample.
  virtual Duration smoothed_rtt() const = 0;
  // Largest datagram that is known to arrive: what is sent. Changes with the path.
  virtual ByteCount max_datagram() const = 0;
  // Longest chunk (header and body) that fits one packet, a multiple of 16: windows' symbol_bytes. It may
  // grow and shrink with the path. Windows keep their chunk length: longer chunks leave in parts, at the cost
  // of more packets and of a chunk lost with any of them.
  virtual size_t MaxChunkBytes() const = 0;
  // Chunk bytes submitted and not yet sent, over all outgoing windows.
  virtual ByteCount backlog() const = 0;

  // --- Requests: they queue, PollTransmit sends ---
  // With ConnectionOptions::wary: from now on the peer may open windows and send what the options allow, or
  // (false) no windows any more. Of a peer that is not admitted WindowOpened comes, but nothing is kept.
  virtual void Admit(bool admitted) = 0;
  // Appends to the reliable ordered stream. Errors: kResourceExhausted (backlog bound), kFailedPrecondition.
  virtual Status SendControl(ByteSpan bytes) = 0;
  // Opens an outgoing window. Errors: kInvalidArgument (it never will, on this connection: what the options
  // may be, or more than the peer takes), kAlreadyExists (a key is used once), kResourceExhausted (too many
  // open), kFailedPrecondition (not connected, or another generation of the window is still open).
  virtual Status OpenWindow(const WindowOptions& options) = 0;
  // Adds the next chunk; see WindowTx::Submit for borrowing and errors; kNotFound for an unknown window.
  virtual Status SubmitChunk(WindowKey key, wire::ReliabilityClass reliability, ByteSpan header,
                             ByteSpan body) = 0;
  // Gives an outgoing window up at once; no WindowClosed comes for it. Borrowed bodies are released.
  virtual void CancelWindow(WindowKey key) = 0;
  // The chunk that the latest event::Chunk of its window brought is not taken: it does not come again, and
  // the CLOSE says that it was not received. Of no effect once the window is closed.
  virtual void RefuseChunk(WindowKey key, wire::ReliabilityClass reliability, uint32_t sequence) = 0;
  // Ends an incoming window: the sender learns which chunks were taken, and no event of it follows. As
  // kExcluded at its WindowOpened: refuses it. Idempotent.
  virtual void CloseWindow(WindowKey key, wire::CloseReason reason) = 0;
  // Asks the sender of an open incoming window for all high chunks that are still missing (WINDOW_NACK). Not
  // repeated when it is lost; the sender listens once per round trip and window. Nothing happens when none is
  // missing.
  virtual void RequestMissing(WindowKey key) = 0;
  // Asks the peer for a rate and a window (server grants). Bandwidth::Zero() = no bound.
  virtual void Grant(Bandwidth rate, ByteCount receive_window) = 0;
  // What the job says of loss (RateOptions::loss_limits), from now on.
  virtual void SetLossLimits(const LossLimits& limits) = 0;
  // Never slower, and never faster, from now on (RateOptions::floor and cap). REQUIRES: floor <= cap.
  virtual void SetRateBounds(Bandwidth floor, Bandwidth cap) = 0;
  // Asks the peer for a sign of life now: a PING, which it acknowledges.
  virtual void Probe() = 0;
  // ConnectionOptions::keepalive, from now on.
  virtual void SetKeepalive(Duration keepalive) { (void)keepalive; }
  // Client: the server, which follows its peers, has answered nothing for a while, so that another source
  // port (by which networks choose among their paths) is worth a try. Again at intervals that double, as long
  // as it is silent.
  virtual bool wants_new_path() const { return false; }
  // The packets leave from another port by now: what was learned of the old path does not hold.
  virtual void TakeNewPath() {}
  // Ends the connection: what is queued is dropped and CLOSE is sent (repeated on need for one PTO). No event
  // but Closed follows, with `why`.
  virtual void Close(const Status& why) = 0;
};

}  // namespace longhaul::transport
