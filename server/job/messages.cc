#include "server/job/messages.h"

#include <algorithm>
#include <utility>

#include "base/units_text.h"
#include "proto/utf8.h"

namespace longhaul::server {

using control::ControlMessage;

JoinRequest RequestOf(const Peer& peer, const control::Join& join) {
  JoinRequest request{.job = join.job(),
                      .rank = join.rank(),
                      .world_size = join.world_size(),
                      .site = join.site(),
                      .identity = peer.connection->identity(),
                      .weight = join.weight(),
                      .session = join.session(),
                      .peer = peer.connection->peer()};
  if (join.has_incarnation()) request.incarnation = join.incarnation();
  return request;
}

ControlMessage RefusedMessage(const Status& why, const std::string& first_server) {
  ControlMessage message;
  message.mutable_refused()->set_code(static_cast<uint32_t>(why.code()));
  message.mutable_refused()->set_message(wire::Printable(why.message(), wire::kMaxTextBytes));
  message.mutable_refused()->set_first_server(first_server);
  return message;
}

ControlMessage LeaveMessage(const Status& why) {
  ControlMessage message;
  message.mutable_leave()->set_code(static_cast<uint32_t>(why.code()));
  message.mutable_leave()->set_message(wire::Printable(why.message(), wire::kMaxTextBytes));
  return message;
}

ControlMessage KickedMessage(const std::string& who) {
  ControlMessage message;
  message.mutable_kicked()->set_who(wire::Printable(who, wire::kMaxTextBytes));
  return message;
}

ControlMessage HandedOverMessage(const std::string& what) {
  ControlMessage message;
  message.mutable_handed_over()->set_what(what);
  return message;
}

std::string Notice(const LastJob& last, Instant now, const ServerSettings& settings) {
  const std::string how = last.outcome.ok() ? "has finished after " + std::to_string(last.rounds) + " rounds"
                                            : "was aborted (" + last.outcome.ToString() + ")";
  return "the last job of this server " + how + ", " + SecondsText(now - last.ended) +
         " ago; this worker is of the next one, which begins when " +
         (settings.start_workers == 0 ? "all " : std::to_string(settings.start_workers) + " of its ") +
         std::to_string(settings.world_size) + " workers are in";
}

ControlMessage WelcomeMessage(const JobSpec& spec, uint64_t job, const std::string& notice) {
  ControlMessage message;
  message.mutable_welcome()->set_notice(wire::Printable(notice, wire::kMaxTextBytes));
  message.mutable_welcome()->set_job_number(job);
  wire::EncodeJobSpec(spec, message.mutable_welcome()->mutable_job_spec());
  return message;
}

ControlMessage MembershipMessage(const Membership& membership, uint64_t epoch) {
  const uint32_t workers = membership.world_size();
  std::string joined((workers + 7) / 8, '\0');
  for (uint32_t rank = 0; rank < workers; ++rank) {
    if (membership.IsJoined(rank)) joined[rank / 8] = static_cast<char>(joined[rank / 8] | 1 << rank % 8);
  }
  ControlMessage message;
  message.mutable_membership()->set_epoch(epoch);
  message.mutable_membership()->set_workers(workers);
  message.mutable_membership()->set_joined(std::move(joined));
  return message;
}

uint16_t LongestChunk(const std::vector<Peer*>& by_rank) {
  size_t symbol_bytes = 65520;
  for (const Peer* peer : by_rank) {
    if (peer != nullptr) symbol_bytes = std::min(symbol_bytes, peer->connection->MaxChunkBytes());
  }
  return static_cast<uint16_t>(symbol_bytes);
}

ControlMessage StartMessage(uint16_t symbol_bytes, uint32_t members) {
  ControlMessage message;
  message.mutable_start()->set_symbol_bytes(symbol_bytes);
  message.mutable_start()->set_members(members);
  return message;
}

ControlMessage BarrierDoneMessage(uint32_t request, const Status& outcome) {
  ControlMessage message;
  message.mutable_barrier_done()->set_request(request);
  message.mutable_barrier_done()->set_code(static_cast<uint32_t>(outcome.code()));
  message.mutable_barrier_done()->set_message(wire::Printable(outcome.message(), wire::kMaxTextBytes));
  return message;
}

ControlMessage WaitingMessage(const std::string& text) {
  ControlMessage message;
  message.mutable_waiting()->set_message(wire::Printable(text, wire::kMaxTextBytes));
  return message;
}

}  // namespace longhaul::server
