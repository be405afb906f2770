#include "server/member/fences.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/reached.h"

namespace longhaul::server {

std::vector<RankSessions> SessionsOf(const std::vector<TensorImage>& tensors, uint32_t ranks) {
  std::vector<RankSessions> sessions(ranks);
  for (const TensorImage& tensor : tensors) {
    for (uint32_t rank = 0; rank < std::min<size_t>(ranks, tensor.counted.size()); ++rank) {
      std::vector<uint64_t>& known = sessions[rank].replaced;
      for (const uint64_t session : tensor.counted[rank].replaced) {
        if (std::ranges::find(known, session) == known.end()) known.push_back(session);
      }
    }
  }
  for (const TensorImage& tensor : tensors) {
    for (uint32_t rank = 0; rank < std::min<size_t>(ranks, tensor.counted.size()); ++rank) {
      RankSessions& of = sessions[rank];
      const uint64_t session = tensor.counted[rank].session;
      if (std::ranges::find(of.replaced, session) == of.replaced.end()) of.last = session;
    }
  }
  return sessions;
}

Status Fences::MayJoin(uint32_t rank, uint64_t session) const {
  if (session == 0 || std::ranges::count(ranks_[rank].replaced, session) == 0) return {};
  LH_REACHED("a worker that another one has followed is refused");
  return {StatusCode::kAlreadyExists, "another process has followed this one as rank " +
                                          std::to_string(rank) +
                                          ", and what of its pushes counts is not known any more"};
}

void Fences::OnJoined(uint32_t rank, uint64_t session) {
  RankSessions& of = ranks_[rank];
  if (of.last != 0 && of.last != session) of.replaced.push_back(of.last);
  of.last = session;
  Trim(of);
}

void Fences::Restore(std::vector<RankSessions> sessions) {
  if (sessions.empty()) return;
  LH_CHECK_OP(sessions.size(), ==, ranks_.size());
  ranks_ = std::move(sessions);
  for (RankSessions& rank : ranks_) Trim(rank);
}

void Fences::Trim(RankSessions& rank) {
  if (rank.replaced.size() > kMost) rank.replaced.erase(rank.replaced.begin(), rank.replaced.end() - kMost);
}

}  // namespace longhaul::server
