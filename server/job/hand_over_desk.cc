#include "server/job/hand_over_desk.h"

#include <algorithm>
#include <utility>

#include "base/reached.h"
#include "server/job/authorization.h"
#include "server/job/messages.h"

namespace longhaul::server {

using control::HandOver;

// --- Begin ---

Status HandOverDesk::MayBegin(const Peer& by, bool logs, bool running) const {
  if (Status may = Authorize(by.connection->identity(), Request::kHandOver); !may.ok()) return may;
  if (active()) return {StatusCode::kAlreadyExists, "the job is being handed over already"};
  const auto no = [](const std::string& why) { return Status(StatusCode::kFailedPrecondition, why); };
  const ServerPlace& place = settings_.place;
  if (place.server != 0) return no("this is no first server: that is " + place.first_server);
  if (!running) return no("no job runs here");
  if (!logs) return no("this server has no round log (--round-log)");
  if (Status all = servers_.MayEnd(); !all.ok()) return all;
  if (settings_.downlink == Downlink::kLossy)
    return no("what a worker misses of a lossy downlink would be lost");
  if (settings_.staleness > 0)
    return no("with a bounded staleness a worker that stops holds up those that are ahead of it");
  for (uint32_t rank = 0; rank < membership_.world_size(); ++rank) {
    const Peer* member = host_->PeerOfRank(rank);
    if (member == nullptr || member->takes_hand_over) continue;
    return no(membership_.Describe(rank) +
              " would not go on: it has no --reconnect-timeout, or is of an earlier version");
  }
  return {};
}

void HandOverDesk::OnRequest(Peer& by, const control::HandOverRequest& request, const ImageKeeper* images,
                             bool running, Instant now) {
  const bool logs = images != nullptr && images->Logs();
  if (Status may = MayBegin(by, logs, running); !may.ok()) return host_->Disconnect(by, may);
  by_ = &by;
  round_ = 0;
  deadline_ = now + Duration(static_cast<int64_t>(request.timeout()));
  by.accepted_at = deadline_ + kServersEnd;  // it may wait so long
  phase_ = Phase::kAsks;
  Tell(HandOver::kAsks);
  const transport::Connection& from = *by.connection;
  if (events_)
    events_->OnHandOverAsked(IdentityText(from.identity()) + " at " + from.peer().ToString(), Status());
}

// --- Steps ---

void HandOverDesk::Tell(HandOver::Phase phase) {
  answered_.assign(membership_.world_size(), false);
  control::ControlMessage message;
  message.mutable_hand_over()->set_phase(phase);
  message.mutable_hand_over()->set_round(round_);
  for (uint32_t rank = 0; rank < membership_.world_size(); ++rank) {
    Peer* const member = host_->PeerOfRank(rank);
    if (member == nullptr) {
      answered_[rank] = true;
    } else if (member->takes_hand_over) {
      host_->Send(*member, message);
    }
  }
}

void HandOverDesk::OnAnswer(const Peer& peer, const control::HandOver& answer) {
  const auto of = [](Phase phase) -> uint32_t {
    return phase == Phase::kAsks    ? HandOver::kAsks
           : phase == Phase::kHolds ? HandOver::kHolds
                                    : HandOver::kEnds;
  };
  // One of a phase before is late.
  if (phase_ == Phase::kIdle || phase_ >= Phase::kServersEnd || answer.phase() != of(phase_)) return;
  if (phase_ == Phase::kAsks) round_ = std::max(round_, answer.round());
  answered_[peer.rank] = true;
}

void HandOverDesk::Run(Instant now) {
  if (phase_ == Phase::kIdle) return;
  if (phase_ < Phase::kServersEnd) {
    const bool all = std::ranges::all_of(answered_, [](bool answered) { return answered; });
    if (!all && now >= deadline_) {
      GiveUp("not all workers have come to one point in time: " + Missing());
    } else if (all && phase_ == Phase::kAsks) {
      phase_ = Phase::kHolds;
      Tell(HandOver::kHolds);
    } else if (all && phase_ == Phase::kHolds) {
      phase_ = Phase::kEnds;
      Tell(HandOver::kEnds);
    } else if (all) {
      EndServers(now);
    }
  }
  if (phase_ == Phase::kServersEnd && (!servers_.AnyOther() || now >= deadline_)) {
    LH_REACHED("a job is handed over to other servers");
    phase_ = Phase::kOver;
    deadline_ = now + kAnswer;
    if (by_ != nullptr) {
      host_->Send(*by_, HandedOverMessage("after round " + std::to_string(round_) + ": " +
                                          std::to_string(settings_.place.servers) +
                                          " servers have ended, the workers wait for the next ones"));
    }
  }
  if (phase_ != Phase::kOver || now < deadline_) return;
  phase_ = Phase::kIdle;
  if (events_) events_->OnHandOver();
}

void HandOverDesk::EndServers(Instant now) {
  phase_ = Phase::kServersEnd;
  deadline_ = now + kServersEnd;
  control::ControlMessage message;
  message.mutable_hand_over()->set_phase(HandOver::kEnds);
  servers_.TellOthers(message);
}

// --- It does not happen ---

void HandOverDesk::OnChange(const std::string& what) {
  // When the others are on their way out it is too late.
  if (active() && phase_ < Phase::kServersEnd) GiveUp(what);
}

std::string HandOverDesk::Missing() const {
  std::string first;
  size_t all = 0;
  for (uint32_t rank = 0; rank < answered_.size(); ++rank) {
    if (!answered_[rank] && all++ == 0) first = membership_.Describe(rank);
  }
  return "no word from " + first + (all > 1 ? " and " + std::to_string(all - 1) + " more" : "");
}

void HandOverDesk::GiveUp(const std::string& why) {
  phase_ = Phase::kIdle;
  Tell(HandOver::kGoesOn);
  const Status not_now(StatusCode::kAborted, "the job goes on here: " + why);
  if (events_) events_->OnHandOverAsked("", not_now);
  if (Peer* by = std::exchange(by_, nullptr)) host_->Disconnect(*by, not_now);
}

}  // namespace longhaul::server
