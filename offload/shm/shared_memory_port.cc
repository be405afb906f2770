#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "offload/engine/collective.h"
#include "offload/port/port.h"
#include "offload/shm/control.h"
#include "offload/shm/copies.h"
#include "offload/shm/rank_memory.h"
#include "offload/shm/socket_file.h"

namespace longhaul::offload {
namespace {

// Between two looks at the socket: a look costs 0.3 us, so polling pays 0.01 % for it.
constexpr int64_t kProbeEveryNs = 4'000'000;

// From a clock that costs a few ns and moves every few ms.
int64_t CoarseNow() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

bool HungUp(int socket) {
  pollfd look{socket, 0, 0};
  return ::poll(&look, 1, 0) == 1 && (look.revents & (POLLHUP | POLLERR)) != 0;
}

// Memory that the daemon has registered, and the caller's that it stands for.
struct PortRegion {
  SharedMemory shared;
  std::span<std::byte> callers;  // empty: the caller has `shared` itself
  bool closing = false;          // Deregister is under way

  bool Holds(ByteRange range) const {
    return !closing && range.offset <= callers.size() && range.bytes <= callers.size() - range.offset;
  }
};

// A request that is not completed and polled.
struct Outstanding {
  bool used = false;
  Opcode opcode = Opcode::kAllReduce;
  uint16_t jid = 0;
  uint32_t mid = 0;
  uint64_t wr_id = 0;
  uint32_t copies_from = 0;  // the key of the region that is copied back; 0: none
  ByteRange back;
};

class SharedMemoryPort final : public Port {
 public:
  ~SharedMemoryPort() override { Close(); }

  Status Connect(const std::string& path, const DeviceOptions& options);

  Result<uint32_t> Register(std::span<std::byte> memory) override;
  Result<Allocation> Allocate(uint64_t bytes, std::string_view shared_name) override;
  Status Deregister(uint32_t key) override;
  Status Post(std::span<const WorkRequest> requests, size_t* bad) override;
  size_t Poll(std::span<Completion> completions) override;
  Status RequestNotify() override;
  int fd() const override { return wake_up_.get(); }
  SiteOptions site() const override { return site_; }
  uint8_t node() const override { return node_; }
  OffloadStats stats() const override;
  void Close() override;

 private:
  // One at a time; after one that was not answered none.
  Result<ReceivedReply> Call(const ControlRequest& request) const;
  Result<uint32_t> AddRegion(uint64_t bytes, std::string_view name, std::span<std::byte> callers);
  Status MarkClosing(uint32_t key);
  // The next need the lock.
  Status PostOne(const WorkRequest& request);
  PortRegion* CopiedRegion(uint32_t key);
  bool IsOver();
  size_t Drain(std::span<Completion> completions);
  bool Finish(const WireCompletion& wire, Completion* out);
  size_t Flush(std::span<Completion> completions);
  void WakeDaemon();

  FileDescriptor control_;
  FileDescriptor wake_up_;
  uint8_t node_ = 0;
  uint8_t rank_ = 0;
  uint32_t seg_bytes_ = 0;
  SiteOptions site_;

  mutable std::mutex call_mutex_;
  mutable bool calls_over_ = false;  // guarded by it

  std::mutex mutex_;  // guards the rest
  RankMemory memory_;
  RingWriter<WireRequest> requests_;
  RingReader<WireCompletion> completions_;
  std::map<uint32_t, PortRegion> regions_;
  std::vector<Outstanding> outstanding_;
  std::vector<uint32_t> free_;  // of outstanding_
  int64_t probed_ = 0;
  bool closed_ = false;
  bool dead_ = false;  // the daemon, or its end of this
};

Status Closed() { return Status(StatusCode::kFailedPrecondition, "offload: the device is closed"); }
Status Dead() { return Status(StatusCode::kPeerDead, "offload: the daemon has ended"); }

Status SharedMemoryPort::Connect(const std::string& path, const DeviceOptions& options) {
  auto socket = SocketFile::Connect(path);
  if (!socket.ok()) return socket.status();
  control_ = std::move(*socket);
  ControlRequest hello;
  hello.node = options.node;
  hello.rank = rank_ = options.rank;
  hello.site = Encode(options.site);
  auto answer = Call(hello);
  if (!answer.ok()) return answer.status();
  const ControlReply& reply = answer->reply;
  const bool sound = std::has_single_bit(reply.ring) && reply.ring <= 65536 &&
                     reply.site.queue_depth <= reply.ring && reply.site.seg_bytes > 0 &&
                     reply.bytes >= RankMemory::BytesOf(reply.ring) && answer->descriptors[1].valid();
  if (!sound) return Status(StatusCode::kProtocolViolation, "offload: the daemon's answer cannot be");
  auto memory = SharedMemory::Map(std::move(answer->descriptors[0]), reply.bytes);
  if (!memory.ok()) return memory.status();
  (void)memory->PassOn(false);
  memory_ = RankMemory(std::move(*memory), reply.ring);
  wake_up_ = std::move(answer->descriptors[1]);
  node_ = static_cast<uint8_t>(reply.key);
  seg_bytes_ = reply.site.seg_bytes;
  site_ = Decode(reply.site);
  RankWords& words = memory_.words();
  requests_ = {&words.request_tail, &words.request_head, memory_.requests(), reply.ring};
  completions_ = {&words.completion_tail, &words.completion_head, memory_.completions(), reply.ring};
  outstanding_.resize(reply.site.queue_depth);
  for (uint32_t i = reply.site.queue_depth; i-- > 0;) free_.push_back(i);
  return Status::Ok();
}

Result<ReceivedReply> SharedMemoryPort::Call(const ControlRequest& request) const {
  const std::lock_guard lock(call_mutex_);
  if (calls_over_) return Dead();
  auto answer = Ask(control_.get(), request);
  const StatusCode code = answer.status().code();
  // An answer that comes late would be taken for the next one's.
  calls_over_ = code == StatusCode::kPeerDead || code == StatusCode::kDeadlineExceeded ||
                request.kind == ControlKind::kClose;
  if (calls_over_) shutdown(control_.get(), SHUT_RDWR);
  return answer;
}

Result<uint32_t> SharedMemoryPort::AddRegion(uint64_t bytes, std::string_view name,
                                             std::span<std::byte> callers) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Closed();
  }
  if (bytes == 0) return Status(StatusCode::kInvalidArgument, "offload: a region without memory");
  if (name.size() > kMaxSharedName) {
    return Status(StatusCode::kInvalidArgument, "offload: a name of shared memory has at most 63 bytes");
  }
  ControlRequest request;
  request.kind = ControlKind::kAllocate;
  request.bytes = bytes;
  SetText(name, &request.name);
  auto answer = Call(request);
  if (!answer.ok()) return answer.status();
  if (answer->reply.bytes < bytes) {
    return Status(StatusCode::kProtocolViolation, "offload: the daemon's answer cannot be");
  }
  auto memory = SharedMemory::Map(std::move(answer->descriptors[0]), answer->reply.bytes);
  if (!memory.ok()) return memory.status();
  (void)memory->PassOn(false);
  const std::lock_guard lock(mutex_);
  regions_[answer->reply.key] = {std::move(*memory), callers};
  return answer->reply.key;
}

Result<uint32_t> SharedMemoryPort::Register(std::span<std::byte> memory) {
  return AddRegion(memory.data() == nullptr ? 0 : memory.size(), {}, memory);
}

Result<Allocation> SharedMemoryPort::Allocate(uint64_t bytes, std::string_view shared_name) {
  const auto key = AddRegion(bytes, shared_name, {});
  if (!key.ok()) return key.status();
  const std::lock_guard lock(mutex_);
  const auto region = regions_.find(*key);  // another thread may have guessed the key and given it back
  if (region == regions_.end()) return Status(StatusCode::kNotFound, "offload: the region is gone");
  return Allocation{*key, region->second.shared.first(bytes)};
}

Status SharedMemoryPort::MarkClosing(uint32_t key) {
  const std::lock_guard lock(mutex_);
  const auto region = regions_.find(key);
  if (region == regions_.end() || region->second.closing) {
    return Status(StatusCode::kNotFound, "offload: no region of this rank has that key");
  }
  for (const Outstanding& request : outstanding_) {
    if (request.used && request.copies_from == key) {
      return Status(StatusCode::kFailedPrecondition, "offload: a request that is not polled uses the region");
    }
  }
  region->second.closing = true;
  return Status::Ok();
}

Status SharedMemoryPort::Deregister(uint32_t key) {
  if (Status status = MarkClosing(key); !status.ok()) return status;
  ControlRequest request;
  request.kind = ControlKind::kDeregister;
  request.key = key;
  const Status status = Call(request).status();
  const std::lock_guard lock(mutex_);
  const bool gone = status.ok() || status.code() == StatusCode::kPeerDead;
  if (gone) {
    regions_.erase(key);
    return Status::Ok();
  }
  regions_.at(key).closing = false;
  return status;
}

Status SharedMemoryPort::Post(std::span<const WorkRequest> requests, size_t* bad) {
  const std::lock_guard lock(mutex_);
  if (closed_) return Closed();
  if (dead_ || memory_.words().ended.value.load(std::memory_order_acquire) != 0) return Dead();
  Status status;
  for (size_t i = 0; i < requests.size() && status.ok(); ++i) {
    status = PostOne(requests[i]);
    if (!status.ok() && bad != nullptr) *bad = i;
  }
  requests_.Publish();
  WakeDaemon();
  return status;
}

PortRegion* SharedMemoryPort::CopiedRegion(uint32_t key) {
  const auto region = regions_.find(key);
  return region == regions_.end() || region->second.callers.empty() ? nullptr : &region->second;
}

Status SharedMemoryPort::PostOne(const WorkRequest& request) {
  if (Status status = CheckRequest(request); !status.ok()) return status;
  if (free_.empty()) {
    return Status(StatusCode::kResourceExhausted, "offload: the rank's queue is full: poll first");
  }
  PortRegion* const from = CopiedRegion(request.send.key);
  PortRegion* const to = CopiedRegion(request.receive.key);
  Outstanding entry{true, request.opcode, request.jid, request.mid, request.wr_id, 0, {}};
  if (from != nullptr || to != nullptr) {
    const auto ranges = RangesOf(request, seg_bytes_, node_, rank_);
    // Where the share lies counts for memory that it is copied to.
    if (!ranges.ok() && to != nullptr) return ranges.status();
    const ByteRange send = ranges.ok() ? ranges->send : ByteRange{request.send.offset, request.length};
    if (from != nullptr && send.bytes > 0 && from->Holds(send)) {
      std::memcpy(from->shared.data() + send.offset, from->callers.data() + send.offset, send.bytes);
    }
    if (to != nullptr && ranges->receive.bytes > 0 && to->Holds(ranges->receive)) {
      entry.copies_from = request.receive.key;
      entry.back = ranges->receive;
    }
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  outstanding_[index] = entry;
  requests_.Write(Encode(request, index));
  return Status::Ok();
}

void SharedMemoryPort::WakeDaemon() {
  // The daemon says that it sleeps and then looks at the ring: one of the two sees the other's store.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<uint32_t>& asleep = memory_.words().daemon_asleep.value;
  if (asleep.load(std::memory_order_relaxed) == 0 || asleep.exchange(0) == 0) return;
  (void)!send(wake_up_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);  // full: it will wake up
}

bool SharedMemoryPort::IsOver() {
  if (closed_ || dead_) return true;
  dead_ = memory_.words().ended.value.load(std::memory_order_acquire) != 0;
  const int64_t now = CoarseNow();
  if (dead_ || now - probed_ < kProbeEveryNs) return dead_;
  probed_ = now;
  dead_ = HungUp(wake_up_.get());
  return dead_;
}

size_t SharedMemoryPort::Poll(std::span<Completion> completions) {
  const std::lock_guard lock(mutex_);
  size_t count = Drain(completions);
  if (count > 0 || !IsOver()) return count;
  count = Drain(completions);  // what came before the end
  return count > 0 ? count : Flush(completions);
}

size_t SharedMemoryPort::Drain(std::span<Completion> completions) {
  const auto available = completions_.Available();
  if (!available || *available == 0) {
    dead_ |= !available;
    return 0;
  }
  size_t count = 0;
  for (uint32_t i = 0; i < *available && count < completions.size(); ++i) {
    if (Finish(completions_.Read(), &completions[count])) ++count;
  }
  completions_.Release();
  return count;
}

bool SharedMemoryPort::Finish(const WireCompletion& wire, Completion* out) {
  if (wire.token >= outstanding_.size() || !outstanding_[wire.token].used) {
    dead_ = true;  // no daemon of ours
    return false;
  }
  Outstanding& request = outstanding_[wire.token];
  *out = Decode(wire);
  out->wr_id = request.wr_id;
  const bool good = out->status == WorkStatus::kSuccess || out->status == WorkStatus::kPartial;
  if (PortRegion* const region = good ? CopiedRegion(request.copies_from) : nullptr) {
    uint64_t bytes = request.back.bytes;
    if (request.opcode == Opcode::kReceive) bytes = std::min(bytes, out->bytes);
    std::memcpy(region->callers.data() + request.back.offset, region->shared.data() + request.back.offset,
                bytes);
  }
  request.used = false;
  free_.push_back(static_cast<uint32_t>(wire.token));
  return true;
}

size_t SharedMemoryPort::Flush(std::span<Completion> completions) {
  size_t count = 0;
  for (uint32_t i = 0; i < outstanding_.size() && count < completions.size(); ++i) {
    Outstanding& request = outstanding_[i];
    if (!request.used) continue;
    Completion& c = completions[count++];
    c = Completion();
    c.wr_id = request.wr_id;
    c.status = WorkStatus::kFlushed;
    c.reason = Reason::kException;
    c.opcode = request.opcode;
    c.jid = request.jid;
    c.mid = request.mid;
    request.used = false;
    free_.push_back(i);
  }
  return count;
}

Status SharedMemoryPort::RequestNotify() {
  const std::lock_guard lock(mutex_);
  char bytes[64];
  (void)!recv(wake_up_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  memory_.words().rank_waits.value.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // What is there already, the daemon announces when it is asked to look.
  if (completions_.Available().value_or(1) > 0) {
    (void)!send(wake_up_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  dead_ |= !closed_ && HungUp(wake_up_.get());
  return Status::Ok();
}

OffloadStats SharedMemoryPort::stats() const {
  ControlRequest request;
  request.kind = ControlKind::kStats;
  const auto answer = Call(request);
  return answer.ok() ? StatsOf(answer->reply) : OffloadStats();
}

void SharedMemoryPort::Close() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true) || !wake_up_.valid()) return;
  }
  ControlRequest request;
  request.kind = ControlKind::kClose;
  (void)Call(request);
}

}  // namespace

Result<std::unique_ptr<Port>> OpenSharedMemory(const std::string& path, const DeviceOptions& options) {
  auto port = std::make_unique<SharedMemoryPort>();
  if (Status status = port->Connect(path, options); !status.ok()) return status;
  return std::unique_ptr<Port>(std::move(port));
}

}  // namespace longhaul::offload
