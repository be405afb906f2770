// One end of a site's control messages, and of its collectives: a device whose ordinary datagrams are
// SiteMessages. What finds no room is lost, as datagrams are.
//
// One thread but for Wake.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/files.h"
#include "longhaul/offload.h"
#include "worker/site/site_message.h"
#include "worker/site/site_shape.h"

namespace longhaul::site {

class Mailbox {
 public:
  // The least seg of a site: the largest message but for declarations with many ranges.
  static constexpr uint32_t kLeastSegBytes = 1024;

  // Errors: kInternal (no descriptor), kInvalidArgument (segs that are too short), those of the device.
  static Result<std::unique_ptr<Mailbox>> Open(offload::Device device);

  offload::Device& device() { return device_; }
  size_t most_bytes() const { return seg_bytes_; }
  // Of unanswered messages to one end, so that those of all ranks find a place there.
  uint32_t window() const {
    const offload::SiteOptions site = device_.site();
    return std::max<uint32_t>(1, receives_ / (uint32_t{site.ranks_per_node} * site.nodes));
  }
  // Leaves as soon as there is room. False: it does not fit a seg, or 1024 wait already; it is lost.
  bool Send(Place to, const SiteMessage& message);
  // A collective whose completion Poll hands out. wr_id: below 2^48.
  Status Post(const offload::WorkRequest& request) { return device_.Post({&request, 1}); }

  using OnMessage = std::function<void(const SiteMessage&)>;
  using OnCompletion = std::function<void(const offload::Completion&)>;
  // Hands out what is there; `before` is called between taking it and handing it out. False: the device has
  // ended.
  bool Poll(const std::function<void()>& before, const OnMessage& on_message,
            const OnCompletion& on_completion);
  // Until something is there, Wake, or so much time has passed.
  void Wait(Duration limit);
  // Any thread.
  void Wake();

  uint64_t lost() const { return lost_; }
  uint64_t malformed() const { return malformed_; }
  // Messages that their sender may not say (MaySay), and the sender of the last one.
  uint64_t refused() const { return refused_; }
  Place refused_of() const { return refused_of_; }

 private:
  explicit Mailbox(offload::Device device) : device_(std::move(device)) {}
  Status Prepare();
  std::span<std::byte> Slot(uint32_t slot) {
    return memory_.memory.subspan(size_t{slot} * seg_bytes_, seg_bytes_);
  }
  void Receive(uint32_t slot);
  void SendWaiting();

  offload::Device device_;
  SiteShape shape_;
  FileDescriptor bell_;
  offload::Allocation memory_;  // receives, then sends
  uint32_t seg_bytes_ = 0;
  uint32_t receives_ = 0;
  struct Outgoing {
    Place to;
    std::vector<uint8_t> bytes;
  };
  std::deque<Outgoing> waiting_;
  std::vector<uint32_t> free_sends_;
  bool over_ = false;
  uint64_t lost_ = 0;
  uint64_t malformed_ = 0;
  uint64_t refused_ = 0;
  Place refused_of_;
};

// Of a leader's, under way at a time. A rank may have eight messages open (offload/shm/rank_session.cc).
inline constexpr size_t kMostCollectives = 6;

// Of a request that a device takes no part in; the others' go on.
constexpr bool IsRefusal(offload::WorkStatus status) {
  return (status >= offload::WorkStatus::kBufferError && status <= offload::WorkStatus::kBadNode) ||
         status == offload::WorkStatus::kOverflow;
}

// Memory of a device, handed out in pieces and never taken back.
class Arena {
 public:
  struct Piece {
    offload::MemorySlice slice;
    std::span<std::byte> memory;
    uint32_t arena = 0;  // its number
    uint64_t arena_bytes = 0;
    std::span<float> floats(size_t count) const { return {reinterpret_cast<float*>(memory.data()), count}; }
  };
  // name: of memory that the ranks share; the n-th block is called NAME/n. Empty: memory of this rank alone.
  explicit Arena(std::string name) : name_(std::move(name)) {}

  // Zeros, or what others have written. Errors: those of Device::Allocate.
  Result<Piece> Take(offload::Device& device, uint64_t bytes);
  // What another end's Take has found. Errors: also kProtocolViolation (it cannot be).
  Result<Piece> Open(offload::Device& device, const ResultPlace& place, uint64_t bytes);
  // Everything at once. False: a pending request still uses some of it.
  bool GiveBack(offload::Device& device);

 private:
  // Pages that are not touched cost nothing; more blocks cost regions, which are few.
  static constexpr uint64_t kBlockBytes = uint64_t{64} << 20;
  struct Block {
    offload::Allocation allocation;
    uint64_t used = 0;
  };
  Status Add(offload::Device& device, uint64_t bytes);

  std::string name_;
  std::vector<Block> blocks_;
};

}  // namespace longhaul::site
