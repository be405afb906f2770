#include "worker/client/server_link.h"

#include "base/check.h"

namespace longhaul::worker {

void ServerLink::Open(transport::Connection* connection) {
  LH_CHECK(connection_ == nullptr);
  connection_ = connection;
  address_ = connection->peer().ToString();
}

void ServerLink::Lose() {
  last_stats_ = connection_->stats();
  connection_ = nullptr;
}

transport::ConnectionStats ServerLink::connection_stats() const {
  return connection_ != nullptr ? connection_->stats() : last_stats_;
}

Duration ServerLink::rtt() const {
  return connection_ != nullptr ? connection_->smoothed_rtt() : last_stats_.smoothed_rtt;
}

void ServerLink::Send(const control::ControlMessage& message) {
  if (connection_ == nullptr) return;
  outbox_.push_back(wire::EncodeControlMessage(message));
  FlushOutbox();
}

void ServerLink::FlushOutbox() {
  while (!outbox_.empty() && connection_ != nullptr) {
    const Status status = connection_->SendControl(outbox_.front());
    if (status.code() == StatusCode::kResourceExhausted) return;  // ControlWritable comes
    if (!status.ok()) return outbox_.clear();                     // the connection is ending; Closed comes
    outbox_.pop_front();
  }
}

void ServerLink::OnShardMap(const control::ShardMap& map) {
  if (map.servers_size() == 0) return;  // of a Welcome without one
  // The bounds are this worker's, and the other servers' connections have as much of them.
  const double share = 1.0 / map.servers_size();
  connection_->SetRateBounds(options.connection.rate.floor * share, options.connection.rate.cap * share);
  if (options.on_shard_map) options.on_shard_map(map);
}

bool ServerLink::OnMembership(const control::Membership& said) {
  if (said.workers() != options.world_size) return false;
  const std::string& joined = said.joined();  // the reader has checked its length
  Membership membership{.epoch = said.epoch(), .shard_count = 0};
  bool own = false;
  for (uint32_t rank = 0; rank < said.workers(); ++rank) {
    if ((static_cast<uint8_t>(joined[rank / 8]) >> rank % 8 & 1) == 0) continue;
    if (rank == options.rank) {
      own = true;
      membership.shard_index = membership.shard_count;
    }
    membership.ranks.push_back(rank);
    ++membership.shard_count;
  }
  if (own && options.on_membership) options.on_membership(membership);
  return own;
}

std::optional<OperationId> ServerLink::Begin(const Status& refusal, Operations::Callback callback) {
  if (!refusal.ok()) {
    operations.Refuse(std::move(callback), refusal);
    return std::nullopt;
  }
  const OperationId id = operations.Begin(now, std::move(callback));
  return operations.IsPending(id) ? std::optional(id) : std::nullopt;
}

void ServerLink::Fail(const Status& why) {
  if (failure_.ok()) failure_ = why;
}

void ServerLink::FailTensor(const std::string& name, const Status& why) {
  Fail(Blame(why.code(), ", tensor " + name + ": " + why.message()));
}

Status ServerLink::Unexpected(const std::string& message) const {
  return Blame(StatusCode::kProtocolViolation, " sent " + message + " at the wrong time");
}

std::string WhyNoAnswer(const transport::ConnectionStats& stats, const std::string& probe) {
  if (stats.refusals > 0) return "only a refusal has come, which counts unless another answer follows";
  if (stats.key_refusals > 0) {
    return "it cannot open what is sent to it: do both have the same key (or both none)?";
  }
  if (stats.answers_failed > 0) return "what answers has no certificate that is trusted here, or is forged";
  if (!probe.empty()) return probe;
  return "nothing comes back: is longhaul-server running there, and does a firewall let UDP through?";
}

}  // namespace longhaul::worker
