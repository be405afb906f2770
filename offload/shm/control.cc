#include "offload/shm/control.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <type_traits>
#include <variant>

namespace longhaul::offload {

// Nothing of the sender's stack travels in gaps.
static_assert(std::has_unique_object_representations_v<ControlRequest> &&
              std::has_unique_object_representations_v<ControlReply>);

WireSite Encode(const SiteOptions& site) {
  WireSite wire;
  wire.max_message_bytes = site.max_message_bytes;
  wire.scratch_bytes = site.scratch_bytes;
  wire.seg_bytes = site.seg_bytes;
  wire.pool_segs = site.pool_segs;
  wire.window_segs = site.window_segs;
  wire.queue_depth = site.queue_depth;
  wire.nodes = site.nodes;
  wire.ranks_per_node = site.ranks_per_node;
  wire.aggregator = site.aggregator ? 1 : 0;
  return wire;
}

SiteOptions Decode(const WireSite& wire) {
  SiteOptions site;
  site.max_message_bytes = wire.max_message_bytes;
  site.scratch_bytes = wire.scratch_bytes;
  site.seg_bytes = wire.seg_bytes;
  site.pool_segs = wire.pool_segs;
  site.window_segs = wire.window_segs;
  site.queue_depth = wire.queue_depth;
  site.nodes = wire.nodes;
  site.ranks_per_node = wire.ranks_per_node;
  site.aggregator = wire.aggregator != 0;
  return site;
}

void SetStats(const OffloadStats& stats, ControlReply* reply) {
  for (size_t i = 0; i < kOffloadCounters.size(); ++i) {
    std::visit(
        [&]<typename T>(T OffloadStats::*member) {
          if constexpr (std::is_integral_v<T>) reply->stats[i] = stats.*member;
        },
        kOffloadCounters[i].field);
  }
}

OffloadStats StatsOf(const ControlReply& reply) {
  OffloadStats stats;
  for (size_t i = 0; i < kOffloadCounters.size(); ++i) {
    std::visit(
        [&]<typename T>(T OffloadStats::*member) {
          if constexpr (std::is_integral_v<T>) stats.*member = static_cast<T>(reply.stats[i]);
        },
        kOffloadCounters[i].field);
  }
  return stats;
}

void SetStatus(const Status& status, ControlReply* reply) {
  reply->status = static_cast<uint16_t>(status.code());
  SetText(status.message(), &reply->message);
}

Status StatusOf(const ControlReply& reply) {
  const bool known = reply.status <= static_cast<uint16_t>(StatusCode::kAeadLimitReached);
  if (reply.magic != kControlMagic || !known) {
    return Status(StatusCode::kProtocolViolation, "offload: the socket is not a longhaul-offload's");
  }
  if (reply.status != 0) {
    return Status(static_cast<StatusCode>(reply.status), std::string(TextOf(reply.message)));
  }
  if (reply.version == kControlVersion) return Status::Ok();
  return Status(StatusCode::kVersionMismatch, "offload: the daemon has another version");
}

bool SendReply(int socket, const ControlReply& reply, std::initializer_list<int> descriptors) {
  iovec part{const_cast<ControlReply*>(&reply), sizeof reply};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptors.size() > 0) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.begin(), descriptors.size() * sizeof(int));
  }
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof reply);
}

namespace {

Status Gone() { return Status(StatusCode::kPeerDead, "offload: the daemon has ended"); }

Status Failed() {
  if (errno == EAGAIN || errno == EWOULDBLOCK) {
    return Status(StatusCode::kDeadlineExceeded, "offload: the daemon does not answer");
  }
  return Gone();
}

void TakeDescriptors(msghdr* message, ReceivedReply* out) {
  cmsghdr* const header = CMSG_FIRSTHDR(message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) return;
  const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (size_t i = 0; i < std::min(count, out->descriptors.size()); ++i) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
    out->descriptors[i].Reset(fd);
  }
}

}  // namespace

Result<ReceivedReply> Ask(int socket, const ControlRequest& request) {
  ssize_t bytes;
  do {
    bytes = send(socket, &request, sizeof request, MSG_NOSIGNAL);
  } while (bytes < 0 && errno == EINTR);
  // A daemon that refuses a newcomer has answered before it closes.
  if (bytes < 0 && errno != EPIPE && errno != ECONNRESET) return Failed();
  ReceivedReply out;
  iovec part{&out.reply, sizeof out.reply};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  do {
    bytes = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (bytes < 0 && errno == EINTR);
  if (bytes < 0) return Failed();
  if (bytes == 0) return Gone();
  TakeDescriptors(&message, &out);
  if (bytes != static_cast<ssize_t>(sizeof out.reply)) {
    return Status(StatusCode::kProtocolViolation, "offload: the socket is not a longhaul-offload's");
  }
  if (Status status = StatusOf(out.reply); !status.ok()) return status;
  return out;
}

}  // namespace longhaul::offload
