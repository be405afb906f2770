#include "transport/core/window/outgoing_windows.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace longhaul::transport {
namespace {

// OPEN is repeated when this many chunks of the window have left. Spaced so that one burst of losses does not
// take every copy; at 10 % random loss all three are lost once in a thousand windows, and then loss recovery
// brings it.
constexpr uint32_t kOpenRepeats[] = {6, 20};

Status CheckOptions(const WindowOptions& o, ByteCount max_window_bytes, const codec::ErasureCoder* coder) {
  const auto invalid = [](std::string what) { return Status(StatusCode::kInvalidArgument, std::move(what)); };
  const uint64_t chunks = uint64_t{o.high_count} + o.low_count;
  if (chunks == 0 || chunks > wire::kMaxWindowChunks) return invalid("a window has 1 to 2^20 chunks");
  if (o.symbol_bytes < 16 || o.symbol_bytes % 16 != 0 || o.symbol_bytes > kMaxSymbolBytes) {
    return invalid("symbol_bytes must be a multiple of 16 up to " + std::to_string(kMaxSymbolBytes));
  }
  if (o.metadata.size() > wire::kMaxWindowMetadataBytes) return invalid("window metadata is too long");
  if (o.fec_k != 0 && (coder == nullptr || !coder->Supports(o.fec_k))) {
    return invalid("no erasure coder for blocks of " + std::to_string(o.fec_k));
  }
  if (static_cast<int64_t>(chunks) * o.symbol_bytes > max_window_bytes.value()) {
    return invalid("window is larger than the peer accepts (" + std::to_string(max_window_bytes.value()) +
                   " bytes)");
  }
  return Status::Ok();
}

}  // namespace

Status OutgoingWindows::Open(const WindowOptions& options, uint32_t limit, ByteCount max_window_bytes) {
  if (Status status = CheckOptions(options, max_window_bytes, coder_); !status.ok()) return status;
  if (limit == 0) return Status(StatusCode::kInvalidArgument, "the peer takes no windows");
  if (IsUsed(options.key)) {
    return Status(StatusCode::kAlreadyExists,
                  "window " + std::to_string(options.key.id) + " was used before");
  }
  // The receiver takes an older generation for closed once the next one is, and its CLOSE would never come.
  if (const auto open = windows_.lower_bound({options.key.id, 0});
      open != windows_.end() && open->first.id == options.key.id) {
    return Status(StatusCode::kFailedPrecondition,
                  "window " + std::to_string(options.key.id) + ": generation " +
                      std::to_string(open->first.generation) + " is open, so generation " +
                      std::to_string(options.key.generation) + " has to wait for its CLOSE");
  }
  if (windows_.size() >= limit) {
    return Status(StatusCode::kResourceExhausted,
                  "the peer allows " + std::to_string(limit) + " open windows");
  }
  MarkUsed(options.key);
  Entry entry;
  entry.window = std::make_unique<WindowTx>(options, coder_);
  entry.age = next_age_++;
  windows_.emplace(options.key, std::move(entry));
  pending_.push_back({wire::FrameType::kWindowOpen, options.key});
  started_ = true;
  return Status::Ok();
}

bool OutgoingWindows::IsUsed(WindowKey key) const {
  if (key.id < forgotten_below_) return true;
  const auto it = used_.find(key.id);
  return it != used_.end() && key.generation <= it->second;
}

void OutgoingWindows::MarkUsed(WindowKey key) {
  used_[key.id] = key.generation;
  while (used_.size() > kRememberedIds) {
    forgotten_below_ = used_.begin()->first + 1;
    used_.erase(used_.begin());
  }
}

WindowTx* OutgoingWindows::Find(WindowKey key) {
  const auto it = windows_.find(key);
  return it == windows_.end() ? nullptr : it->second.window.get();
}

void OutgoingWindows::Erase(WindowKey key) { windows_.erase(key); }

std::unique_ptr<WindowTx> OutgoingWindows::Take(WindowKey key) {
  const auto it = windows_.find(key);
  LH_CHECK(it != windows_.end());
  std::unique_ptr<WindowTx> window = std::move(it->second.window);
  windows_.erase(it);
  return window;
}

bool OutgoingWindows::HasChunk() const {
  return std::any_of(windows_.begin(), windows_.end(),
                     [](const auto& item) { return !item.second.window->Idle(); });
}

size_t OutgoingWindows::LongestChunk() const {
  size_t longest = 0;
  for (const auto& [key, entry] : windows_) {
    longest = std::max<size_t>(longest, entry.window->options().symbol_bytes);
  }
  return longest;
}

// Repair symbols rank like new high chunks: behind those of their own window, but not behind a younger
// window's. Otherwise an endless row of windows keeps an older one open, which waits for nothing but its
// repair symbols.
OutgoingWindows::Entry* OutgoingWindows::MostUrgent() {
  Entry* best = nullptr;
  std::tuple<WindowTx::Tier, int, uint64_t> best_rank;
  for (auto& [key, entry] : windows_) {
    WindowTx::Tier tier = entry.window->NextTier();
    if (tier == WindowTx::Tier::kNothing) continue;
    if (tier == WindowTx::Tier::kRepair) tier = WindowTx::Tier::kHighNew;
    const std::tuple rank(tier, entry.window->options().priority, entry.age);
    if (best == nullptr || rank < best_rank) {
      best = &entry;
      best_rank = rank;
    }
  }
  return best;
}

std::optional<WindowTx::Item> OutgoingWindows::NextChunk(const PathView& path) {
  Entry* entry = MostUrgent();
  if (entry == nullptr) return std::nullopt;
  std::optional<WindowTx::Item> item = entry->window->Next(path);
  if (!item) return std::nullopt;
  ++entry->chunks_sent;
  const WindowKey key = entry->window->options().key;
  if (std::find(std::begin(kOpenRepeats), std::end(kOpenRepeats), entry->chunks_sent) !=
      std::end(kOpenRepeats)) {
    pending_.push_back({wire::FrameType::kWindowOpen, key});
  }
  if (entry->window->Finished()) {
    item->header.last_of_window = true;
    if (!entry->status_queued) {
      entry->status_queued = true;
      pending_.push_back({wire::FrameType::kWindowStatus, key});
    }
  }
  return item;
}

std::optional<OutgoingWindows::Pending> OutgoingWindows::PeekFrame() {
  while (!pending_.empty() && !windows_.contains(pending_.front().key)) pending_.pop_front();
  if (pending_.empty()) return std::nullopt;
  return pending_.front();
}

void OutgoingWindows::Requeue(wire::FrameType type, WindowKey key) {
  if (!windows_.contains(key)) return;
  const bool waits = std::any_of(pending_.begin(), pending_.end(),
                                 [&](const Pending& p) { return p.type == type && p.key == key; });
  if (!waits) pending_.push_front({type, key});
}

std::optional<uint32_t> OutgoingWindows::OnNack(const wire::WindowNackFrame& frame, Instant now,
                                                Duration interval) {
  const auto it = windows_.find({frame.window_id, frame.generation});
  if (it == windows_.end()) return 0;
  Entry& entry = it->second;
  if (entry.nacked && now < *entry.nacked + interval) return std::nullopt;
  const uint32_t queued = entry.window->OnNack(frame);
  if (queued > 0) entry.nacked = now;
  return queued;
}

ByteCount OutgoingWindows::backlog() const {
  ByteCount total;
  for (const auto& [key, entry] : windows_) total += entry.window->backlog();
  return total;
}

bool OutgoingWindows::TakeStarted() {
  const bool started = started_;
  started_ = false;
  return started;
}

}  // namespace longhaul::transport
