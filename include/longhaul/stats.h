// What longhaul tells its user about work done: plain values, copied at the moment of asking.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longhaul/units.h"

namespace longhaul {

// One operation (Push, Pull, PushPull). Final once the operation is done.
struct OperationStats {
  uint64_t round = 0;        // of the tensor: the round pushed into, or the version pulled
  ByteCount bytes;           // tensor bytes moved, gradient out plus values in
  ByteCount wire_bytes;      // chunk bytes as they travelled: headers, retransmissions and repair included
  uint32_t chunks_sent = 0;  // distinct chunks that left
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

// One client since it connected.
struct ClientStats {
  uint64_t operations_started = 0;
  uint64_t operations_succeeded = 0;
  uint64_t operations_failed = 0;
  // Of the connection.
  uint64_t packets_sent = 0;
  uint64_t packets_received = 0;
  uint64_t packets_lost = 0;  // of ours, declared lost (before FEC)
  uint64_t retransmissions = 0;
  uint64_t repairs_sent = 0;
  uint64_t repaired_chunks = 0;  // rebuilt by FEC here
  uint64_t lost_chunks = 0;      // low chunks of closed windows that the server did not have
  // Chunks whose unpaid gradients (policy residual) had grown beyond what float32 holds: dropped. Not 0 means
  // that gradients are about to overflow, or were.
  uint64_t debts_dropped = 0;
  uint64_t pto_fired = 0;
  uint64_t datagrams_dropped = 0;  // received and dropped: damaged, duplicate, late or unknown
  ByteCount bytes_sent;            // UDP payload
  ByteCount bytes_received;
  ByteCount chunk_bytes_sent;      // first transmissions
  ByteCount chunk_bytes_received;  // distinct chunks
  Duration smoothed_rtt{0};
  Duration min_rtt{0};
  Duration latest_rtt{0};
  double loss = 0;      // recent loss of what we send, before FEC, 0..1
  Bandwidth bandwidth;  // estimate of the path towards the server
  // What the rate controller has fitted of the path towards the server (docs/glossary.md: target loss).
  double fit_floor = 0;      // l0: lost at any rate, 0..1
  Bandwidth fit_capacity;    // C; zero while unknown
  double target_loss = 0;    // l*, 0..1
  double fit_r_squared = 0;  // 0..1
  int fit_samples = 0;       // round trips
  std::string fit_state;     // "fitted", or why not: "few_samples", "no_excitation", ...
  std::string rate_state;    // "startup", "probe_bw_cruise", ...
  // For how long what held the sending back: nothing to send, the estimate of the path (its rate, its bytes
  // in flight), what the server can take, what the server grants, and the own cap.
  Duration limited_by_app{0};
  Duration limited_by_pacing{0};
  Duration limited_by_cwnd{0};
  Duration limited_by_receive_window{0};
  Duration limited_by_grant{0};
  Duration limited_by_cap{0};
  // Of the rounds that the server has reported to this worker.
  uint64_t rounds_reported = 0;
  uint64_t round_repaired_chunks = 0;
  uint64_t round_filled_chunks = 0;
  uint64_t round_tolerated_chunks = 0;
  uint64_t round_rejected_chunks = 0;
  uint64_t round_lost_chunks = 0;
  // With the server's --downlink lossy.
  uint64_t result_chunks_lost = 0;     // values that stayed for one round more as they were
  uint64_t state_hashes_agreed = 0;    // proofs that this worker's values are the server's
  uint64_t state_hash_mismatches = 0;  // each ends the job
};

}  // namespace longhaul
