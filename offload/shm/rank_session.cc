#include "offload/shm/rank_session.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <utility>

namespace longhaul::offload {
namespace {

// Requests of a rank that are taken in one turn, and the time after which no further one is: others have
// their turn every 64 ranks x 0.2 ms at the latest, and notice of a death well below 100 ms.
constexpr uint32_t kMostRequests = 64;
constexpr Duration kSlice = std::chrono::microseconds(200);
constexpr size_t kMostCompletions = 64;
// The table of regions is one per node (MemoryTable::kMaxRegions): each rank has its share of it.
constexpr size_t kLeastRegions = 16;
// A message that is larger costs the engine more than a glance, so it is looked at here first.
constexpr uint64_t kLargeMessage = uint64_t{1} << 20;

Instant Clock() {
  return Instant::FromNanoseconds(std::chrono::steady_clock::now().time_since_epoch().count());
}

// The engine has room for so many messages: a rank that opens some and waits leaves others theirs.
constexpr size_t kLeastMessages = 8;

uint64_t IdOf(uint16_t jid, uint32_t mid) { return uint64_t{jid} << 32 | mid; }
bool IsCollective(Opcode opcode) { return opcode <= Opcode::kBroadcast; }

}  // namespace

Result<std::unique_ptr<RankSession>> RankSession::Open(SiteEngines* engines, SharedRegions* shared,
                                                       uint8_t node, uint8_t rank, uint64_t max_bytes) {
  const uint32_t ring = std::bit_ceil(engines->site().queue_depth);
  auto memory = SharedMemory::Create("longhaul-offload-rings", RankMemory::BytesOf(ring));
  if (!memory.ok()) return memory.status();
  std::unique_ptr<RankSession> session(new RankSession(engines, shared, node, rank, max_bytes));
  session->memory_ = RankMemory(std::move(*memory), ring);
  session->batch_.resize(kMostCompletions);
  RankMemory& m = session->memory_;
  RankWords& words = m.words();
  session->requests_ = {&words.request_tail, &words.request_head, m.requests(), ring};
  session->completions_ = {&words.completion_tail, &words.completion_head, m.completions(), ring};
  return session;
}

RankSession::~RankSession() {
  engines_->RankGone(Clock(), node_, rank_);
  while (GiveCompletions()) {
  }
  // Completions that the rank has no room for are dropped.
  std::array<Completion, 16> rest;
  while (engine().Poll(rank_, rest) > 0) {
  }
  memory_.words().ended.value.store(1, std::memory_order_release);
}

bool RankSession::HasRequests() const { return requests_.Available().value_or(1) > 0; }

bool RankSession::TakeRequests(Instant now) {
  const auto available = requests_.Available();
  if (!available) Break("its ring's cursor cannot be");
  if (!available || *available == 0 || !broken_.empty()) return false;
  const uint32_t count = std::min(*available, kMostRequests);
  for (uint32_t i = 0; i < count; ++i) {
    if (i > 0 && Clock() - now > kSlice) break;
    if (!Take(now, requests_.Read())) break;
  }
  requests_.Release();
  return true;
}

bool RankSession::Take(Instant now, const WireRequest& wire) {
  DecodedRequest decoded;
  if (!Decode(wire, &decoded)) {
    Break("a request that no library writes");
    return false;
  }
  const WorkRequest& request = decoded.request;
  if (const WorkStatus status = Enter(request); status != WorkStatus::kSuccess) {
    Refuse(request, status);
    return broken_.empty();
  }
  if (const Status posted = engine().Post(now, rank_, request); !posted.ok()) {
    Break(posted.message());
    return false;
  }
  return true;
}

size_t RankSession::MostMessages() const {
  return std::max<size_t>(kLeastMessages, ControlStore::kMaxMessages / engines_->site().ranks_per_node);
}

WorkStatus RankSession::Enter(const WorkRequest& request) {
  if (!IsCollective(request.opcode)) return WorkStatus::kSuccess;
  if (IsBeyondMemory(request)) return WorkStatus::kProtectionError;
  const uint64_t id = IdOf(request.jid, request.mid);
  const auto message = std::ranges::find(messages_, id, &Message::id);
  if (message != messages_.end()) {
    ++message->requests;
  } else if (messages_.size() < MostMessages()) {
    messages_.push_back({id, 1});
  } else {
    return WorkStatus::kOverflow;
  }
  return WorkStatus::kSuccess;
}

void RankSession::Leave(const Completion& completion) {
  if (!IsCollective(completion.opcode)) return;
  const auto message = std::ranges::find(messages_, IdOf(completion.jid, completion.mid), &Message::id);
  if (message == messages_.end() || --message->requests > 0) return;
  *message = messages_.back();
  messages_.pop_back();
}

bool RankSession::IsBeyondMemory(const WorkRequest& request) const {
  if (request.length < kLargeMessage) return false;
  const auto holds = [&request](const auto& region) { return region.second->size() >= request.length; };
  return std::ranges::none_of(regions_, holds);
}

void RankSession::Refuse(const WorkRequest& request, WorkStatus status) {
  Completion c;
  c.wr_id = request.wr_id;
  c.status = status;
  c.reason = Reason::kException;
  c.opcode = request.opcode;
  c.jid = request.jid;
  c.mid = request.mid;
  if (completions_.Free().value_or(0) == 0) return Break("requests beyond its queue");
  completions_.Write(Encode(c));
  completions_.Publish();
}

bool RankSession::GiveCompletions() {
  const auto free = completions_.Free();
  if (!free) Break("its ring's cursor cannot be");
  const size_t count =
      engine().Poll(rank_, std::span(batch_).first(std::min<size_t>(free.value_or(0), batch_.size())));
  if (count == 0) return false;
  for (size_t i = 0; i < count; ++i) {
    Leave(batch_[i]);
    completions_.Write(Encode(batch_[i]));
  }
  completions_.Publish();
  return true;
}

bool RankSession::TakeNotification() {
  // The rank sets its wish and then looks at the ring: one of the two sees the other's store.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<uint32_t>& waits = memory_.words().rank_waits.value;
  if (waits.load(std::memory_order_relaxed) == 0 || completions_.Drained()) return false;
  return waits.exchange(0, std::memory_order_relaxed) != 0;
}

void RankSession::SetAsleep(bool asleep) {
  memory_.words().daemon_asleep.value.store(asleep ? 1 : 0, std::memory_order_seq_cst);
}

size_t RankSession::MostRegions() const {
  return std::max<size_t>(kLeastRegions, MemoryTable::kMaxRegions / engines_->site().ranks_per_node);
}

Result<std::shared_ptr<SharedMemory>> RankSession::MemoryOf(uint64_t bytes, const std::string& name) {
  std::erase_if(*shared_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<SharedMemory> none;
  std::weak_ptr<SharedMemory>& entry = name.empty() ? none : (*shared_)[name];
  if (auto memory = entry.lock()) {
    if (memory->size() == SharedMemory::RoundUp(bytes)) return memory;
    return Status(StatusCode::kInvalidArgument, "offload: memory of that name has another size");
  }
  auto made = SharedMemory::Create("longhaul-offload-region", bytes);
  if (!made.ok()) return made.status();
  auto memory = std::make_shared<SharedMemory>(std::move(*made));
  entry = memory;
  return memory;
}

Result<RankSession::Allocated> RankSession::Allocate(uint64_t bytes, std::string_view name) {
  if (regions_.size() >= MostRegions()) {
    return Status(StatusCode::kResourceExhausted,
                  "offload: " + std::to_string(MostRegions()) + " regions of a rank are registered");
  }
  if (bytes > max_bytes_ || SharedMemory::RoundUp(bytes) > max_bytes_ - bytes_) {
    return Status(StatusCode::kResourceExhausted, "offload: a rank may register no more bytes");
  }
  auto memory = MemoryOf(bytes, std::string(name));
  if (!memory.ok()) return memory.status();
  const auto key = engine().Register(rank_, (*memory)->first(bytes));
  if (!key.ok()) return key.status();
  bytes_ += (*memory)->size();
  regions_[*key] = *memory;
  // Memory without a name is mapped once: its descriptor is not needed again.
  return Allocated{*key, (*memory)->size(), (*memory)->PassOn(!name.empty())};
}

Status RankSession::Deregister(uint32_t key) {
  const auto region = regions_.find(key);
  Status status = engine().Deregister(rank_, key);
  if (!status.ok() || region == regions_.end()) return status;
  bytes_ -= region->second->size();
  regions_.erase(region);
  return status;
}

}  // namespace longhaul::offload
