// What a rank asks the daemon besides its requests, over a Unix socket that keeps messages apart: one
// message, one answer. The answers carry descriptors; the daemon takes none.
//
// When not: anything that is done more than once in a while; the rings are for that.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/files.h"
#include "longhaul/offload.h"

namespace longhaul::offload {

inline constexpr uint32_t kControlMagic = 0x4c484f31;  // "LHO1"
// Moves with every change of what the two sides share: messages, words, ring entries.
inline constexpr uint16_t kControlVersion = 3;

enum class ControlKind : uint16_t {
  kHello = 0,       // node, rank, site; the answer: node (as key), ring, site, [shared words, wake-up socket]
  kAllocate = 1,    // bytes, name; the answer: key, [memory]
  kDeregister = 2,  // key
  kStats = 3,       // the answer: stats
  kClose = 4,       // the rank leaves; after the answer its memory is not touched any more
};

struct WireSite {
  uint64_t max_message_bytes = 0;
  uint64_t scratch_bytes = 0;
  uint32_t seg_bytes = 0;
  uint32_t pool_segs = 0;
  uint32_t window_segs = 0;
  uint32_t queue_depth = 0;
  uint8_t nodes = 0;
  uint8_t ranks_per_node = 0;
  uint8_t aggregator = 0;
  uint8_t reserved[5] = {};
};
WireSite Encode(const SiteOptions& site);
SiteOptions Decode(const WireSite& wire);

// Of a name that ranks share memory under.
inline constexpr size_t kMaxSharedName = 63;

struct ControlRequest {
  uint32_t magic = kControlMagic;
  uint16_t version = kControlVersion;
  ControlKind kind = ControlKind::kHello;
  uint8_t node = 0;
  uint8_t rank = 0;
  uint16_t reserved = 0;
  uint32_t key = 0;
  uint64_t bytes = 0;
  WireSite site;
  std::array<char, kMaxSharedName + 1> name = {};  // ends with a zero
};

struct ControlReply {
  uint32_t magic = kControlMagic;
  uint16_t version = kControlVersion;
  uint16_t status = 0;  // a StatusCode
  uint32_t key = 0;
  uint32_t ring = 0;
  uint64_t bytes = 0;
  WireSite site;
  std::array<uint64_t, kOffloadCounters.size()> stats = {};  // in the order of kOffloadCounters
  std::array<char, 192> message = {};                        // ends with a zero
};

// The text up to its first zero, or all of it.
template <size_t N>
std::string_view TextOf(const std::array<char, N>& text) {
  const std::string_view all(text.data(), N);
  return all.substr(0, all.find('\0'));
}
// As much of it as fits before a zero.
template <size_t N>
void SetText(std::string_view text, std::array<char, N>* out) {
  out->fill('\0');
  text.copy(out->data(), N - 1);
}

void SetStats(const OffloadStats& stats, ControlReply* reply);
OffloadStats StatsOf(const ControlReply& reply);
void SetStatus(const Status& status, ControlReply* reply);
// kProtocolViolation: the answer is none of this version.
Status StatusOf(const ControlReply& reply);

// Sends without waiting, with descriptors that stay the caller's. False: the peer does not take it.
bool SendReply(int socket, const ControlReply& reply, std::initializer_list<int> descriptors);

struct ReceivedReply {
  ControlReply reply;
  std::array<FileDescriptor, 2> descriptors;
};
// The rank's call: sends and waits for the answer, as long as the socket's time limits allow. Errors:
// kPeerDead (the daemon has ended), kDeadlineExceeded, and what the daemon answers.
Result<ReceivedReply> Ask(int socket, const ControlRequest& request);

}  // namespace longhaul::offload
