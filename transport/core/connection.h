// One connection between a worker and a server: the coordinator that owns the parts (recovery, rate, windows,
// control stream) and routes events between them. Sans-I/O: made and driven by an Endpoint.
//
// Handshake: INIT (client) -> ACCEPT (server) -> first short packet. See docs/wire_format.md and handshake.h.
// Every connection ends: OnClosed is called exactly once with a named reason, at the latest one idle time-out
// after the peer was last heard.
//
// Not thread-safe. Observer methods are called from inside Handle* and Poll*; they may call the requests
// (Send, Open, Close, ...) of any connection of the endpoint, but no event method.
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
#include "codec/erasure_coder.h"
#include "longhaul/status.h"
#include "longhaul/units.h"
#include "proto/frames.h"
#include "proto/packet_header.h"
#include "transport/core/key_update.h"
#include "transport/core/rate/rate_controller.h"
#include "transport/core/security.h"
#include "transport/core/window/window_types.h"

namespace longhaul::transport {

class Connection;

// What a connection tells its owner.
class ConnectionObserver {
 public:
  virtual ~ConnectionObserver() = default;

  // The handshake is complete and the search for the path's MTU, where one was needed, is over; windows and
  // control data may be sent.
  virtual void OnConnected(Connection& connection) { (void)connection; }
  // The last call about this connection; it may be destroyed any time after the observer returns.
  virtual void OnClosed(Connection& connection, const Status& why) = 0;
  // The next bytes of the peer's control stream, in order, exactly once; at most kMaxControlSlice at a time.
  static constexpr size_t kMaxControlSlice = 16 * 1024;
  virtual void OnControlData(Connection& connection, ByteSpan bytes) = 0;
  // All control data given to SendControl so far was acknowledged after SendControl had refused for lack of
  // room.
  virtual void OnControlWritable(Connection& connection) { (void)connection; }

  // The peer opened a window towards us. An error refuses it: the window is closed as kExcluded.
  virtual Status OnWindowOpened(Connection& connection, WindowKey key, const wire::WindowOpenFrame& open) = 0;
  // A chunk of an open window is here; exactly once per chunk. `repaired`: rebuilt by FEC; then `chunk` has
  // the window's symbol length, padded with zeros. A chunk that is refused does not come again either; the
  // CLOSE will tell the sender that it was not received.
  virtual ChunkVerdict OnChunk(Connection& connection, WindowKey key, wire::ReliabilityClass reliability,
                               uint32_t sequence, ByteSpan chunk, bool repaired) = 0;
  // Something about an open incoming window changed (chunks arrived, or the sender is finished): the moment
  // for the close rule. Called once per datagram, after its chunks.
  virtual void OnWindowProgress(Connection& connection, WindowKey key) {
    (void)connection;
    (void)key;
  }

  // A window of ours is over: the receiver closed it. The borrowed chunk bodies are free again.
  // receipt: which chunks the receiver has taken.
  virtual void OnWindowClosed(Connection& connection, WindowKey key, wire::CloseReason reason,
                              const WindowReceipt& receipt, const WindowTxStats& stats) = 0;
};

struct ConnectionOptions {
  // UDP payload; 1200 is what every path carries. 1452 for Ethernet, 1344 under a VPN, 8952 with jumbo
  // frames: what the path really carries is found out (path/dplpmtud.h).
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
  // its control stream, so that who has not said what he wants costs little.
  bool wary = false;
  // Server: follow a worker whose address changes (a rebound NAT), after the new address has proved itself.
  // Unless said otherwise only when packets are authenticated by keys: without, whoever can read one could
  // take the connection with him.
  std::optional<bool> allow_migration;
  // Mark datagrams as ECN-capable, after the path has been seen to carry the marks (path/ecn_validator.h).
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

// Counters since the start; every drop, retransmission and repair is in here.
struct ConnectionStats {
  uint64_t packets_sent = 0;
  uint64_t packets_received = 0;
  uint64_t bytes_sent = 0;  // UDP payload
  uint64_t bytes_received = 0;
  uint64_t chunk_bytes_sent = 0;      // first transmissions of chunks
  uint64_t chunk_bytes_received = 0;  // distinct chunks delivered, repaired ones included
  uint64_t packets_lost = 0;          // declared lost by the sender's side (raw)
  uint64_t packets_spurious = 0;
  uint64_t retransmissions = 0;  // high chunks sent again
  uint64_t repair_sent = 0;
  uint64_t repair_received = 0;
  uint64_t chunks_repaired = 0;  // rebuilt by FEC here
  uint64_t chunks_refused = 0;   // delivered here, but not taken by the owner
  uint64_t low_chunks_lost = 0;  // low chunks of closed outgoing windows that the peer did not take
  uint64_t duplicates_dropped = 0;
  uint64_t bad_tag_dropped = 0;
  uint64_t malformed_dropped = 0;
  uint64_t unknown_window_dropped = 0;  // DATA before its OPEN and beyond the bound of what is buffered
  uint64_t late_dropped = 0;            // DATA of a closed window
  uint64_t not_admitted_dropped = 0;    // DATA and windows of a peer that is not (or no longer) admitted
  uint64_t pto_fired = 0;
  uint64_t nacks_sent = 0;      // WINDOW_NACK
  uint64_t nacks_received = 0;  // of them, those that queued something
  uint64_t nacks_ignored = 0;   // asked again within a round trip
  uint64_t refusals = 0;        // REFUSE: the server answered, and that it takes no connection
  uint64_t windows_opened = 0;
  uint64_t windows_closed = 0;
  uint64_t host_drops = 0;         // as the peer reports about its socket
  uint64_t migrations = 0;         // times that the peer's address was changed
  uint64_t path_candidates = 0;    // other addresses that spoke for the peer
  uint64_t path_challenges = 0;    // sent to them
  uint64_t path_timeouts = 0;      // of these, addresses that did not answer
  uint64_t path_refused = 0;       // datagrams from addresses beyond the bound
  uint64_t candidate_dropped = 0;  // datagrams that only made an address a candidate
  uint64_t handshake_flights =
      0;                 // flights of long packets that this side began to send, repetitions included
  uint64_t retries = 0;  // client: RETRY that was followed
  uint64_t refusals_ignored = 0;  // client: REFUSE or CLOSE of the handshake that authentic packets refuted
  uint64_t before_keys_dropped = 0;  // short packets that came before the handshake was complete
  uint64_t key_updates = 0;          // that this side began
  uint64_t peer_key_updates = 0;     // changes of the peer's keys
  uint64_t wrong_id_dropped = 0;     // long packets of another connection of the same peer
  std::string_view cipher;           // of the packets (PacketProtection::name); "" without keys
  std::string_view ecn_state;        // "off", "testing", "unknown", "capable", "failed"
  uint64_t ecn_ce = 0;               // of our packets, marked Congestion Experienced, as the peer reports
  uint64_t mtu_probes_sent = 0;      // without INITs, which prove a size as well
  uint64_t mtu_probes_lost = 0;      // in none of the counters of loss
  uint64_t black_holes = 0;          // times that the path began to swallow large datagrams, or seemed to
  Duration smoothed_rtt{0};
  Duration min_rtt{0};
  Duration latest_rtt{0};
  ByteCount bytes_in_flight;
  double loss = 0;  // recent raw loss of what we send, 0..1
  // What FEC is planned by (window/loss_estimator.h, fec_policy.h).
  double loss_for_fec = 0;      // loss with its margin
  double loss_correlation = 0;  // rho of 20 consecutive packets, 0..0.5
  double mean_loss_burst = 1;   // packets lost in a row
  uint32_t fec_depth = 0;       // blocks interleaved by a window that leaves the depth to us
  // Of what the peer sends, as seen here: packets_expected - packets_received did not arrive (yet).
  uint64_t packets_expected = 0;  // one more than the largest packet number received
  Duration incoming_queue{0};     // standing queue on the way here (recovery/queue_delay.h)
  RateSnapshot rate;
  // For how long each RateLimiter held the sending back, from the handshake to the latest event. Time in
  // which nothing did (a batch was full) is in none.
  std::array<Duration, kRateLimiters> limited{};
};

// State of an incoming window, for the close rule.
struct IncomingWindow {
  uint32_t high_count = 0;
  uint32_t low_count = 0;
  bool high_complete = false;  // by arrival: a chunk that was refused is here
  bool complete = false;
  bool sender_finished = false;
  double high_ratio = 0;  // share of the high class that is here, 0..1
  double low_ratio = 0;
  WindowRxStats stats;
};

class Connection {
 public:
  enum class State : uint8_t { kConnecting, kConnected, kClosing, kClosed };

  virtual ~Connection() = default;

  // --- Questions ---
  virtual State state() const = 0;
  virtual wire::ConnectionId local_id() const = 0;
  virtual Address peer() const = 0;
  // Who the peer has proved to be; kNone before that and without security.
  virtual const PeerIdentity& identity() const = 0;
  virtual ConnectionStats stats() const = 0;
  // Largest datagram that is known to arrive: what is sent. Changes with the path.
  virtual ByteCount max_datagram() const = 0;
  // Longest chunk (header and body) that fits one packet, a multiple of 16: windows' symbol_bytes. It may
  // grow and shrink with the path. Windows keep their chunk length: those that the path no longer carries
  // wait while it is found out what it does carry, and when that is too little the connection ends as
  // kUnavailable, naming both sizes.
  virtual size_t MaxChunkBytes() const = 0;
  virtual std::optional<IncomingWindow> incoming(WindowKey key) const = 0;
  // Chunk bytes submitted and not yet sent, over all outgoing windows.
  virtual ByteCount backlog() const = 0;
  // Whoever owns the connection may hang his own object here; the connection never touches it.
  void* user = nullptr;

  // --- Requests: they queue, PollTransmit sends ---
  // With ConnectionOptions::wary: from now on the peer may open windows and send what the options allow, or
  // (false) no windows any more. Of a peer that is not admitted OnWindowOpened is told, but whatever it
  // answers nothing is kept.
  virtual void Admit(bool admitted) = 0;
  // Appends to the reliable ordered stream. Errors: kResourceExhausted (backlog bound), kFailedPrecondition.
  virtual Status SendControl(ByteSpan bytes) = 0;
  // Opens an outgoing window. Errors: kInvalidArgument, kAlreadyExists (a key is used once),
  // kResourceExhausted (too many open), kFailedPrecondition (not connected, or another generation of the
  // window is still open), kUnavailable (the path carried such chunks once and no longer does; the connection
  // ends).
  virtual Status OpenWindow(const WindowOptions& options) = 0;
  // Adds the next chunk; see WindowTx::Submit for borrowing and errors; kNotFound for an unknown window.
  virtual Status SubmitChunk(WindowKey key, wire::ReliabilityClass reliability, ByteSpan header,
                             ByteSpan body) = 0;
  // Gives an outgoing window up at once; OnWindowClosed is not called for it. Borrowed bodies are released.
  virtual void CancelWindow(WindowKey key) = 0;
  // Ends an incoming window and tells the sender what arrived. Idempotent.
  virtual void CloseWindow(WindowKey key, wire::CloseReason reason) = 0;
  // Asks the sender of an open incoming window for all high chunks that are still missing (WINDOW_NACK). Not
  // repeated when it is lost; the sender listens once per round trip and window. Nothing happens when none is
  // missing.
  virtual void RequestMissing(WindowKey key) = 0;
  // Asks the peer for a rate and a window (server grants). Bandwidth::Zero() = no bound.
  virtual void Grant(Bandwidth rate, ByteCount receive_window) = 0;
  // Ends the connection: what is queued is dropped, the peer is told (repeated on need for one PTO).
  // OnClosed follows from the endpoint with `why`.
  virtual void Close(const Status& why) = 0;
};

}  // namespace longhaul::transport
