#include "worker/replica.h"

#include <cstdio>
#include <utility>

#include "codec/state_hash.h"

namespace longhaul::worker {
namespace {

std::string Hex(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", value);
  return text;
}

}  // namespace

Status Replica::CheckPartial(uint64_t round) const {
  const std::string which = "the result of round " + std::to_string(round) + " may lose chunks, though ";
  if (codec::IsHashRound(round, hash_rounds_)) {
    return {StatusCode::kProtocolViolation, which + "its hash will be compared"};
  }
  if (!round_ || *round_ + 1 != round) {
    return {StatusCode::kProtocolViolation, which + "this worker has not the result of the round before"};
  }
  return Status::Ok();
}

Status Replica::LearnMissed(uint64_t round, const transport::ChunkBitmap& received) {
  transport::ChunkBitmap missed(results_.chunks());
  for (uint32_t chunk = 0; chunk < results_.chunks(); ++chunk) {
    if (received.Test(chunk)) continue;
    if (missed_.Test(chunk)) {
      return {StatusCode::kDataLoss, "chunk " + std::to_string(chunk) + " of the result of round " +
                                         std::to_string(round) +
                                         " is missing, as it was in the result before: the server owed it"};
    }
    missed.Set(chunk);
  }
  missed_ = std::move(missed);
  return Status::Ok();
}

Status Replica::OnResult(uint64_t round, const transport::ChunkBitmap& received) {
  if (Status s = LearnMissed(round, received); !s.ok()) return s;
  round_ = round;
  if (codec::IsHashRound(round + 1, hash_rounds_)) {
    before_hash_round_ = {round, codec::ReplicaHash(results_, values_)};
  }
  // Now: the next round's result may write here before the server's hash of this one comes.
  if (!codec::IsHashRound(round, hash_rounds_)) return Status::Ok();
  own_ = {round, codec::StateHash(values_)};
  return Compare();
}

Status Replica::OnServerHash(uint64_t round, uint32_t hash) {
  servers_ = {round, hash};
  return Compare();
}

Status Replica::OnReplicaHash(uint64_t round, uint32_t hash) {
  if (!before_hash_round_ || before_hash_round_->round != round) return Status::Ok();
  const uint32_t own = before_hash_round_->value;
  before_hash_round_.reset();
  return Judge(round, "are not what the server takes them for", own, hash);
}

Status Replica::Compare() {
  if (!own_ || !servers_ || own_->round != servers_->round) return Status::Ok();
  const Hash own = *own_;
  const Hash servers = *servers_;
  own_.reset();
  servers_.reset();
  return Judge(own.round, "are not the server's", own.value, servers.value);
}

Status Replica::Judge(uint64_t round, const std::string& what, uint32_t own, uint32_t servers) {
  if (own == servers) {
    ++stats_.agreed;
    return Status::Ok();
  }
  ++stats_.mismatches;
  return {StatusCode::kDataLoss, "after round " + std::to_string(round) + " this worker's values " + what +
                                     ": state hash " + Hex(own) + ", the server's " + Hex(servers)};
}

}  // namespace longhaul::worker
