// What longhaul tells its user about work done: plain values, copied at the moment of asking.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "longhaul/units.h"

namespace longhaul {

// kCount only grows (since the start, or since a job's); kState is how things are at the moment of asking.
enum class CounterKind : uint8_t { kByType, kCount, kState };

// One counter of a set S, for JSON, metrics and documentation: each set has a table of them, from which all
// that prints, adds or describes the set follows.
template <typename S>
struct Counter {
  // By type uint64_t counts events or bytes, and every other type is a state.
  std::variant<uint64_t S::*, uint32_t S::*, int S::*, double S::*, ByteCount S::*, Bandwidth S::*,
               Duration S::*, std::string S::*, std::string_view S::*>
      field;
  std::string_view name;  // of the field; in JSON durations have _ms behind it, rates _mbps
  std::string_view help;
  CounterKind kind = CounterKind::kByType;  // where the type does not say it
};

// One operation (Push, Pull, PushPull). Final once the operation is done.
struct OperationStats {
  uint64_t round = 0;  // of the tensor: the round pushed into, or of the result; the version pulled
  // Where a push has counted; `round` is later where its result came from a server that was started again.
  uint64_t pushed_round = 0;
  ByteCount bytes;           // tensor bytes moved, gradient out plus values in
  ByteCount wire_bytes;      // chunk bytes as they travelled: headers, retransmissions and repair included
  uint32_t chunks_sent = 0;  // distinct chunks that left; 0 of a push that was passed over
  uint32_t chunks_received = 0;
  uint32_t retransmissions = 0;  // high chunks of ours sent again
  uint32_t repairs_sent = 0;     // repair symbols (FEC) sent with our chunks
  uint32_t repaired_chunks = 0;  // received chunks that FEC rebuilt here
  uint32_t lost_chunks = 0;      // chunks of ours that the server did not have when it closed the window
  // Chunks of the result that did not arrive (the server's --downlink lossy): their values are still those of
  // the round before.
  uint32_t lost_result_chunks = 0;
  Duration rtt{0};     // smoothed round-trip time when the operation ended
  double seconds = 0;  // from the call to the end
  // The server's report of the round. Best effort: absent when it was not here yet at the end.
  struct RoundInfo {
    uint32_t last_rank = 0;  // whose window closed last
    uint32_t contributors = 0;
    uint32_t repaired_chunks = 0;   // by FEC at the server, over all workers
    uint32_t filled_chunks = 0;     // lost contributions of windows above the bubble-filling threshold
    uint32_t tolerated_chunks = 0;  // lost contributions of the others
    uint32_t rejected_chunks = 0;   // contributions that the server's guard refused
    // What the loss policy did about losses: none_lost, below_threshold, above_threshold, repaid, shifted.
    std::string fill_reason;
    uint32_t excluded = 0;    // workers that the round did not wait for
    uint32_t low_chunks = 0;  // of the low class, over all workers
    uint32_t low_lost = 0;    // of them did not arrive
    uint32_t lost_chunks = 0;
    double loss = 0;  // share of low chunks that did not arrive, 0..1
  };
  std::optional<RoundInfo> round_info;
};

// One client since it connected; kClientCounters says what each counter means.
struct ClientStats {
  uint64_t operations_started = 0;
  uint64_t operations_succeeded = 0;
  uint64_t operations_failed = 0;
  uint64_t packets_sent = 0;
  uint64_t packets_received = 0;
  uint64_t packets_lost = 0;
  uint64_t retransmissions = 0;
  uint64_t repairs_sent = 0;
  uint64_t repaired_chunks = 0;
  uint64_t lost_chunks = 0;
  uint64_t debts_dropped = 0;
  uint64_t pto_fired = 0;
  uint64_t datagrams_dropped = 0;
  ByteCount bytes_sent;
  ByteCount bytes_received;
  ByteCount chunk_bytes_sent;
  ByteCount chunk_bytes_received;
  Duration smoothed_rtt{0};
  Duration min_rtt{0};
  Duration latest_rtt{0};
  double loss = 0;
  Bandwidth bandwidth;
  double fit_floor = 0;
  Bandwidth fit_capacity;
  double target_loss = 0;
  double fit_r_squared = 0;
  int fit_samples = 0;
  std::string fit_state;
  std::string fit_basis;
  std::string rate_state;
  Duration limited_by_app{0};
  Duration limited_by_pacing{0};
  Duration limited_by_cwnd{0};
  Duration limited_by_receive_window{0};
  Duration limited_by_grant{0};
  Duration limited_by_cap{0};
  uint64_t rounds_reported = 0;
  uint64_t reconnections = 0;
  uint64_t pushes_passed_over = 0;
  uint64_t round_repaired_chunks = 0;
  uint64_t round_filled_chunks = 0;
  uint64_t round_tolerated_chunks = 0;
  uint64_t round_rejected_chunks = 0;
  uint64_t round_lost_chunks = 0;
  uint64_t result_chunks_lost = 0;
  uint64_t state_hashes_agreed = 0;
  uint64_t state_hash_mismatches = 0;
  uint64_t callbacks_threw = 0;
  Duration longest_event{0};
};

inline constexpr Counter<ClientStats> kClientCounters[] = {
    {&ClientStats::operations_started, "operations_started", "operations since the client connected"},
    {&ClientStats::operations_succeeded, "operations_succeeded", "of them, ended well"},
    {&ClientStats::operations_failed, "operations_failed", "of them, ended with an error"},
    {&ClientStats::packets_sent, "packets_sent", "packets sent"},
    {&ClientStats::packets_received, "packets_received", "packets received"},
    {&ClientStats::packets_lost, "packets_lost", "own packets declared lost, before FEC"},
    {&ClientStats::retransmissions, "retransmissions", "high chunks sent again"},
    {&ClientStats::repairs_sent, "repairs_sent", "repair symbols (FEC) sent"},
    {&ClientStats::repaired_chunks, "repaired_chunks", "received chunks that FEC rebuilt here"},
    {&ClientStats::lost_chunks, "lost_chunks", "low chunks of closed windows that the server did not have"},
    {&ClientStats::debts_dropped, "debts_dropped",
     "chunks whose unpaid gradients (policy residual) had grown beyond what can be summed; not 0: gradients "
     "overflow, or are about to"},
    {&ClientStats::pto_fired, "pto_fired", "probe timeouts"},
    {&ClientStats::datagrams_dropped, "datagrams_dropped",
     "received and dropped: damaged, duplicate, late or unknown"},
    {&ClientStats::bytes_sent, "bytes_sent", "UDP payload sent", CounterKind::kCount},
    {&ClientStats::bytes_received, "bytes_received", "UDP payload received", CounterKind::kCount},
    {&ClientStats::chunk_bytes_sent, "chunk_bytes_sent", "chunk bytes, first transmissions",
     CounterKind::kCount},
    {&ClientStats::chunk_bytes_received, "chunk_bytes_received", "bytes of distinct chunks received",
     CounterKind::kCount},
    {&ClientStats::smoothed_rtt, "smoothed_rtt", "smoothed round-trip time"},
    {&ClientStats::min_rtt, "min_rtt", "smallest round-trip time"},
    {&ClientStats::latest_rtt, "latest_rtt", "latest round-trip time"},
    {&ClientStats::loss, "loss", "recent loss of what is sent, before FEC, 0..1"},
    {&ClientStats::bandwidth, "bandwidth", "estimate of the path towards the server"},
    {&ClientStats::fit_floor, "fit_floor", "l0, the loss that the path has at any rate, 0..1"},
    {&ClientStats::fit_capacity, "fit_capacity", "C, capacity of the path; 0 while unknown"},
    {&ClientStats::target_loss, "target_loss", "l*, the loss that the controller aims at, 0..1"},
    {&ClientStats::fit_r_squared, "fit_r_squared", "how well the fit explains what was seen, 0..1"},
    {&ClientStats::fit_samples, "fit_samples", "round trips in the fit"},
    {&ClientStats::fit_state, "fit_state", "fitted, granted, or why not: few_samples, app_limited, ..."},
    {&ClientStats::fit_basis, "fit_basis", "of the target: curves, or why not: floor, flat_loss, ..."},
    {&ClientStats::rate_state, "rate_state", "state of the rate controller: startup, probe_bw_cruise, ..."},
    {&ClientStats::limited_by_app, "limited_by_app", "time in which there was nothing to send",
     CounterKind::kCount},
    {&ClientStats::limited_by_pacing, "limited_by_pacing",
     "time in which the estimated rate of the path held the sending back", CounterKind::kCount},
    {&ClientStats::limited_by_cwnd, "limited_by_cwnd", "time in which the bytes in flight did",
     CounterKind::kCount},
    {&ClientStats::limited_by_receive_window, "limited_by_receive_window",
     "time in which the server's receive window did", CounterKind::kCount},
    {&ClientStats::limited_by_grant, "limited_by_grant", "time in which the server's grant did",
     CounterKind::kCount},
    {&ClientStats::limited_by_cap, "limited_by_cap", "time in which the own cap did", CounterKind::kCount},
    {&ClientStats::rounds_reported, "rounds_reported", "rounds that the server has reported"},
    {&ClientStats::reconnections, "reconnections", "times that the job went on with a server that was lost"},
    {&ClientStats::pushes_passed_over, "pushes_passed_over",
     "pushes of which nothing counted, since their round was over; policy residual owes them"},
    {&ClientStats::round_repaired_chunks, "round_repaired_chunks",
     "in them: chunks rebuilt by FEC at the server, over all workers"},
    {&ClientStats::round_filled_chunks, "round_filled_chunks",
     "in them: lost contributions that the policy filled"},
    {&ClientStats::round_tolerated_chunks, "round_tolerated_chunks",
     "in them: lost contributions at or below the bubble threshold"},
    {&ClientStats::round_rejected_chunks, "round_rejected_chunks",
     "in them: contributions that the guard refused"},
    {&ClientStats::round_lost_chunks, "round_lost_chunks", "in them: contributions that did not arrive"},
    {&ClientStats::result_chunks_lost, "result_chunks_lost",
     "downlink lossy: values that stayed for one round more as they were"},
    {&ClientStats::state_hashes_agreed, "state_hashes_agreed",
     "downlink lossy: proofs that this worker's values are the server's"},
    {&ClientStats::state_hash_mismatches, "state_hash_mismatches", "downlink lossy: each ends the job"},
    {&ClientStats::callbacks_threw, "callbacks_threw",
     "the program's callbacks (Then, log) that ended with an exception, which is logged and ignored"},
    {&ClientStats::longest_event, "longest_event",
     "the most CPU time that one event of the client's thread has taken, to 0.25 ms; the server waits "
     "meanwhile"},
};

// How many pushes of a tensor have counted: of this worker, of the members that have made the fewest and the
// most, and how many members there are. A worker that joins in mid-job begins with the slowest one's.
struct TensorClock {
  uint64_t own = 0;
  uint64_t slowest = 0;
  uint64_t fastest = 0;
  uint32_t members = 0;
};

}  // namespace longhaul
