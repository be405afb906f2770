#include "worker/client/replica.h"

#include <cstdio>
#include <utility>

#include "codec/policy/state_hash.h"

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

Status Replica::OnResult(uint64_t round, const transport::ChunkBitmap& received) {
  BeginResult(round);
  for (uint32_t chunk = 0; chunk < results_.chunks(); ++chunk) {
    if (Status s = OnResultChunk(chunk, received.Test(chunk)); !s.ok()) return s;
  }
  return FinishResult();
}

void Replica::BeginResult(uint64_t round) {
  round_ = round;
  newly_missed_ = transport::ChunkBitmap(results_.chunks());
  whole_hash_ = 0;
  chunk_hashes_.clear();
}

Status Replica::OnResultChunk(uint32_t chunk, bool received) {
  if (!received && missed_.Test(chunk)) {
    return {StatusCode::kDataLoss, "chunk " + std::to_string(chunk) + " of the result of round " +
                                       std::to_string(*round_) +
                                       " is missing, as it was in the result before: the server owed it"};
  }
  if (!received) newly_missed_.Set(chunk);
  const std::span<const float> values = results_.Elements(values_.span(), chunk);
  if (codec::IsHashRound(*round_, hash_rounds_)) whole_hash_ = codec::StateHash(values, whole_hash_);
  if (codec::IsHashRound(*round_ + 1, hash_rounds_)) chunk_hashes_.push_back(codec::StateHash(values));
  return Status::Ok();
}

Status Replica::FinishResult() {
  missed_ = std::move(newly_missed_);
  if (codec::IsHashRound(*round_ + 1, hash_rounds_)) {
    before_hash_round_ = {*round_, codec::HashOfHashes(chunk_hashes_)};
  }
  // Now: the next round's result may write here before the server's hash of this one comes.
  if (!codec::IsHashRound(*round_, hash_rounds_)) return Status::Ok();
  own_ = {*round_, whole_hash_};
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
