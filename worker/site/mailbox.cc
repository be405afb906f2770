#include "worker/site/mailbox.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

namespace longhaul::site {
namespace {

using offload::Completion;
using offload::Opcode;
using offload::WorkRequest;
using offload::WorkStatus;

// wr_id: what it is, and which slot.
constexpr uint64_t kReceiveTag = uint64_t{1} << 48;
constexpr uint64_t kSendTag = uint64_t{2} << 48;
constexpr uint32_t kSends = 32;
// Messages; each is a kilobyte at most but for declarations.
constexpr size_t kMostWaiting = 1024;
// Half receives, a quarter sends, a quarter collectives: a rank has a few, the relay kMostCollectives.
constexpr uint32_t kLeastQueueDepth = 4 * kSends;
// Blocks of an arena: regions of a rank are 16 at least, of which this takes some.
constexpr size_t kMostBlocks = 12;
constexpr uint64_t kAlignment = 64;

}  // namespace

Result<std::unique_ptr<Mailbox>> Mailbox::Open(offload::Device device) {
  std::unique_ptr<Mailbox> mailbox(new Mailbox(std::move(device)));
  if (Status s = mailbox->Prepare(); !s.ok()) return s;
  return mailbox;
}

Status Mailbox::Prepare() {
  const offload::SiteOptions site = device_.site();
  shape_ = SiteShape::Of(site);
  seg_bytes_ = site.seg_bytes;
  if (seg_bytes_ < kLeastSegBytes || site.queue_depth < kLeastQueueDepth) {
    return {StatusCode::kInvalidArgument,
            "the site's stream needs segs of at least 1024 bytes and a queue of at least 128"};
  }
  receives_ = site.queue_depth / 2;
  auto memory = device_.Allocate(uint64_t{receives_ + kSends} * seg_bytes_);
  if (!memory.ok()) return memory.status();
  memory_ = *memory;
  bell_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell_.valid()) return {StatusCode::kInternal, "the site's stream has no descriptor to wait with"};
  for (uint32_t slot = 0; slot < kSends; ++slot) free_sends_.push_back(receives_ + slot);
  for (uint32_t slot = 0; slot < receives_; ++slot) Receive(slot);
  return over_ ? Status(StatusCode::kPeerDead, "the site's longhaul-offload has ended") : Status();
}

void Mailbox::Receive(uint32_t slot) {
  WorkRequest request;
  request.wr_id = kReceiveTag | slot;
  request.opcode = Opcode::kReceive;
  request.length = seg_bytes_;
  request.receive = {memory_.key, uint64_t{slot} * seg_bytes_};
  over_ |= !Post(request).ok();
}

bool Mailbox::Send(Place to, const SiteMessage& message) {
  Outgoing outgoing{to, Encode(message)};
  if (outgoing.bytes.size() > seg_bytes_ || waiting_.size() >= kMostWaiting) {
    ++lost_;
    return false;
  }
  waiting_.push_back(std::move(outgoing));
  SendWaiting();
  return true;
}

void Mailbox::SendWaiting() {
  while (!waiting_.empty() && !free_sends_.empty()) {
    const Outgoing& next = waiting_.front();
    const uint32_t slot = free_sends_.back();
    std::memcpy(Slot(slot).data(), next.bytes.data(), next.bytes.size());
    WorkRequest request;
    request.wr_id = kSendTag | slot;
    request.opcode = Opcode::kSend;
    request.length = next.bytes.size();
    request.send = {memory_.key, uint64_t{slot} * seg_bytes_};
    request.root_node = next.to.node;
    request.root_rank = next.to.slot;
    if (!Post(request).ok()) return;
    free_sends_.pop_back();
    waiting_.pop_front();
  }
}

bool Mailbox::Poll(const std::function<void()>& before, const OnMessage& on_message,
                   const OnCompletion& on_completion) {
  std::array<Completion, 64> batch;
  const size_t count = device_.Poll(batch);
  before();
  for (const Completion& c : std::span(batch).first(count)) {
    const auto slot = static_cast<uint32_t>(c.wr_id);
    if ((c.wr_id & kSendTag) != 0) {
      free_sends_.push_back(slot);
    } else if ((c.wr_id & kReceiveTag) == 0) {
      on_completion(c);
    } else if (c.status == WorkStatus::kFlushed) {
      over_ = true;
    } else {
      // Out of memory that others can write: a copy first.
      const auto* const data = reinterpret_cast<const uint8_t*>(Slot(slot).data());
      const std::vector<uint8_t> bytes(data, data + std::min<uint64_t>(c.bytes, seg_bytes_));
      const auto message = c.status == WorkStatus::kSuccess ? Decode(bytes) : std::nullopt;
      Receive(slot);
      malformed_ += !message;
      if (!message) continue;
      if (const Place sender{c.source_node, c.source_rank}; !MaySay(sender, shape_, *message)) {
        ++refused_;
        refused_of_ = sender;
      } else {
        on_message(*message);
      }
    }
  }
  SendWaiting();
  return !over_;
}

void Mailbox::Wait(Duration limit) {
  if (!device_.RequestNotify().ok()) over_ = true;
  std::array<pollfd, 2> what{{{over_ ? -1 : device_.fd(), POLLIN, 0}, {bell_.get(), POLLIN, 0}}};
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(std::max(limit, Duration(0))).count();
  ::poll(what.data(), what.size(), static_cast<int>(std::min<int64_t>(ms, 1000)));
  uint64_t rings = 0;
  if ((what[1].revents & POLLIN) != 0) (void)!::read(bell_.get(), &rings, sizeof rings);
}

void Mailbox::Wake() {
  const uint64_t one = 1;
  (void)!::write(bell_.get(), &one, sizeof one);
}

Status Arena::Add(offload::Device& device, uint64_t bytes) {
  const std::string name = name_.empty() ? "" : name_ + "/" + std::to_string(blocks_.size());
  auto allocation = device.Allocate(bytes, name);
  if (!allocation.ok()) return allocation.status();
  blocks_.push_back({*allocation, 0});
  return {};
}

Result<Arena::Piece> Arena::Take(offload::Device& device, uint64_t bytes) {
  const uint64_t room = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (blocks_.empty() || blocks_.back().allocation.memory.size() - blocks_.back().used < room) {
    if (blocks_.size() >= kMostBlocks) {
      return Status(StatusCode::kResourceExhausted,
                    "the site's tensors take more memory than it has blocks for");
    }
    // Each block at least as large as all before it.
    const uint64_t block = blocks_.empty() ? kBlockBytes : 2 * blocks_.back().allocation.memory.size();
    if (Status s = Add(device, std::max(room, block)); !s.ok()) {
      if (s.code() != StatusCode::kResourceExhausted) return s;
      if (Status least = Add(device, room); !least.ok()) return least;
    }
  }
  Block& block = blocks_.back();
  Piece piece{{block.allocation.key, block.used},
              block.allocation.memory.subspan(block.used, bytes),
              static_cast<uint32_t>(blocks_.size() - 1),
              block.allocation.memory.size()};
  block.used += room;
  return piece;
}

Result<Arena::Piece> Arena::Open(offload::Device& device, const ResultPlace& place, uint64_t bytes) {
  if (place.arena >= kMostBlocks || place.offset > place.arena_bytes ||
      bytes > place.arena_bytes - place.offset) {
    return Status(StatusCode::kProtocolViolation, "the site's relay names memory that cannot be");
  }
  if (place.arena >= blocks_.size()) blocks_.resize(place.arena + 1);
  Block& block = blocks_[place.arena];
  if (block.allocation.memory.empty()) {
    auto allocation = device.Allocate(place.arena_bytes, name_ + "/" + std::to_string(place.arena));
    if (!allocation.ok()) return allocation.status();
    block.allocation = *allocation;
  }
  if (block.allocation.memory.size() != place.arena_bytes) {
    return Status(StatusCode::kProtocolViolation, "the site's relay names memory of another size");
  }
  return Piece{{block.allocation.key, place.offset},
               block.allocation.memory.subspan(place.offset, bytes),
               place.arena,
               place.arena_bytes};
}

bool Arena::GiveBack(offload::Device& device) {
  std::erase_if(blocks_, [&device](const Block& block) {
    return block.allocation.memory.empty() ||
           device.Deregister(block.allocation.key).code() != StatusCode::kFailedPrecondition;
  });
  return blocks_.empty();
}

}  // namespace longhaul::site
