// What arrives from the workers: checks their windows, adds their chunks to the sum of the round, and closes
// the windows by the close rule.
//
// What follows from it (final chunks, finished rounds) is the owner's: every event returns an Outcome. Time
// is an argument. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/instant.h"
#include "codec/chunk/window_metadata.h"
#include "longhaul/job.h"
#include "server/results/result_sender.h"
#include "server/round/round_host.h"
#include "server/round/tensor_job.h"
#include "server/settings.h"
#include "transport/core/connection/events.h"

namespace longhaul::server {

class Intake {
 public:
  struct Outcome {
    TensorJob* job = nullptr;       // null: nothing has changed
    std::optional<uint32_t> ready;  // a chunk of the round that every awaited worker has contributed to
    bool closed = false;            // a window is over
    // ... which brought the initial values. It is open yet: the owner closes it.
    std::optional<InitialWindow> initialized;
    Instant check_at = Instant::Infinite();  // when time alone may close the window
  };

  // logs: the answer to a push without a result waits until its round is on the disk, and is the owner's
  // (TensorJob::untold). All pointers must outlive this.
  Intake(const ServerSettings& settings, uint16_t symbol_bytes, const Membership* membership,
         RoundEngineHost* host, TensorJobs* jobs, ResultSender* results, EngineStats* stats, bool logs);

  Status OnWindowOpened(Instant now, Peer& peer, transport::WindowKey key, const wire::WindowOpenFrame& open);
  // kRefused: the chunk does not count in the round in progress; the worker owns it again.
  transport::ChunkVerdict OnChunk(Peer& peer, transport::WindowKey key, bool high, ByteSpan bytes,
                                  bool repaired, Outcome* outcome);
  Outcome OnWindowState(Instant now, Peer& peer, const transport::event::WindowState& state);
  // The window's check_at is due.
  Outcome CheckClose(Instant now, Peer& peer, transport::WindowKey key);

 private:
  Status OpenGradient(Instant now, Peer& peer, transport::WindowKey key,
                      const codec::WindowMetadata& metadata, TensorJob& job);
  Status OpenStep(Instant now, Peer& peer, transport::WindowKey key, const codec::WindowMetadata& metadata,
                  TensorJob& job);
  // The window of a gradient is open from here on.
  Transfer& Begin(Instant now, Peer& peer, transport::WindowKey key, const codec::WindowMetadata& metadata,
                  TensorJob& job);
  Status OpenInitial(Peer& peer, transport::WindowKey key, TensorJob& job);
  float CountWeight(uint32_t rank, float said, TensorJob& job);
  Status Violation(Peer& peer, StatusCode code, const std::string& what);
  transport::ChunkVerdict AddGradient(Peer& peer, Transfer& transfer, bool high, uint32_t chunk,
                                      bool repaired, Outcome* outcome);
  transport::ChunkVerdict AcknowledgeWithoutCounting();
  bool PassesGuard(const Peer& peer, const Transfer& transfer, bool high, uint32_t chunk,
                   std::span<const float> values);
  transport::CloseRuleInput CloseInput(const Peer& peer, const TensorJob& job,
                                       const Transfer& transfer) const;
  void Close(Instant now, Peer& peer, transport::WindowKey key, wire::CloseReason reason, Outcome* outcome);
  void CloseGradient(Peer& peer, transport::WindowKey key, const Transfer& transfer,
                     wire::CloseReason reason);

  const JobSpec spec_;
  const uint16_t symbol_bytes_;
  const bool logs_;
  const Membership* membership_;
  RoundEngineHost* host_;
  TensorJobs* jobs_;
  ResultSender* results_;
  EngineStats* stats_;
  std::vector<float> scratch_;  // one decoded chunk
};

}  // namespace longhaul::server
