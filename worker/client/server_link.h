// What the parts of a worker's session share: the connection while there is one, control messages on their
// way out, operations and how they end, and what the job decides.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "longhaul/job.h"
#include "longhaul/stats.h"
#include "longhaul/status.h"
#include "proto/control_codec.h"
#include "transport/core/connection/connection.h"
#include "worker/client/operations.h"
#include "worker/client/worker_options.h"

namespace longhaul::worker {

class ServerLink {
 public:
  explicit ServerLink(WorkerCoreOptions worker)
      : options(std::move(worker)),
        alignment(options.alignment ? options.alignment : std::make_shared<RoundAlignment>()),
        operations(options.max_operations) {}

  // --- The connection ---
  void Open(transport::Connection* connection);
  // The connection is gone; its counters stay.
  void Lose();
  // Null before Open and after Lose.
  transport::Connection* connection() const { return connection_; }
  transport::ConnectionStats connection_stats() const;
  Duration rtt() const;
  // "server 10.0.0.1:7700".
  std::string ServerName() const { return "server " + address_; }

  // --- Control messages ---
  uint32_t NextRequest() { return next_request_++; }
  void Send(const control::ControlMessage& message);
  // Sends what the connection had no room for.
  void FlushOutbox();
  void DropOutbox() { outbox_.clear(); }

  // --- Several servers ---
  void OnShardMap(const control::ShardMap& map);
  // Which ranks are in. False: this worker's is not, or they are of another number of workers.
  bool OnMembership(const control::Membership& said);
  // HOST:PORT of the first server, to which this one has sent the worker; else "".
  std::string first_server;

  // --- Operations ---
  // None: the operation has ended at once, because of `refusal` or the bound on operations.
  std::optional<OperationId> Begin(const Status& refusal, Operations::Callback callback);
  void Finish(OperationId id, const Status& outcome) { operations.Finish(id, outcome, now, rtt()); }

  // --- Errors ---
  // The session fails with this after the event or message in progress; the first error counts.
  void Fail(const Status& why);
  void FailTensor(const std::string& name, const Status& why);
  const Status& failure() const { return failure_; }
  // An error of the server's: its name and `what`.
  Status Blame(StatusCode code, const std::string& what) const { return {code, ServerName() + what}; }
  Status Unexpected(const std::string& message) const;

  const WorkerCoreOptions options;
  const std::shared_ptr<RoundAlignment> alignment;
  Operations operations;
  JobSpec settings;           // from Welcome
  uint16_t symbol_bytes = 0;  // from Start
  Instant now;
  ClientStats totals;  // what has no better place

 private:
  transport::Connection* connection_ = nullptr;
  transport::ConnectionStats last_stats_;  // kept when the connection is gone
  std::string address_;
  std::deque<std::vector<uint8_t>> outbox_;  // refused for lack of room; bounded by max_operations
  uint32_t next_request_ = 1;
  Status failure_;
};

// What may be wrong while a server does not answer, in words. A hint only: the packets that it rests on can
// be forged on the path. probe: what the network says (udp::Probe), or empty.
std::string WhyNoAnswer(const transport::ConnectionStats& stats, const std::string& probe);

}  // namespace longhaul::worker
