#include "worker/replica.h"

#include <cstdio>

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

Status Replica::OnResult(uint64_t round) {
  round_ = round;
  // Now: the next round's result may write here before the server's hash of this one comes.
  if (!codec::IsHashRound(round, hash_rounds_)) return Status::Ok();
  own_ = {round, codec::StateHash(values_)};
  return Compare();
}

Status Replica::OnServerHash(uint64_t round, uint32_t hash) {
  servers_ = {round, hash};
  return Compare();
}

Status Replica::Compare() {
  if (!own_ || !servers_ || own_->round != servers_->round) return Status::Ok();
  const Hash own = *own_;
  const Hash servers = *servers_;
  own_.reset();
  servers_.reset();
  if (own.value == servers.value) {
    ++stats_.agreed;
    return Status::Ok();
  }
  ++stats_.mismatches;
  return {StatusCode::kDataLoss, "after round " + std::to_string(own.round) +
                                     " this worker's values are not the server's: state hash " + Hex(own.value) +
                                     ", the server's " + Hex(servers.value)};
}

}  // namespace longhaul::worker
