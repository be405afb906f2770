#include "transport/core/window/incoming_windows.h"

#include <algorithm>
#include <string>

namespace longhaul::transport {

Result<IncomingWindows::OpenVerdict> IncomingWindows::OnOpen(const wire::WindowOpenFrame& open) {
  const WindowKey key{open.window_id, open.generation};
  if (IsClosed(key)) return OpenVerdict::kClosed;
  if (open_.contains(key)) return OpenVerdict::kRepeated;
  if (Status status = WindowRx::ValidateOpen(open, limits_.max_window_bytes, coder_); !status.ok())
    return status;
  if (open_.size() >= limits_.max_open) {
    return Status(StatusCode::kResourceExhausted,
                  "more than " + std::to_string(limits_.max_open) + " windows open at once");
  }
  open_.emplace(key, std::make_unique<WindowRx>(open, coder_));
  return OpenVerdict::kOpened;
}

WindowRx* IncomingWindows::Find(WindowKey key) {
  const auto it = open_.find(key);
  return it == open_.end() ? nullptr : it->second.get();
}

const WindowRx* IncomingWindows::Find(WindowKey key) const {
  const auto it = open_.find(key);
  return it == open_.end() ? nullptr : it->second.get();
}

bool IncomingWindows::IsClosed(WindowKey key) const {
  if (key.id < forgotten_below_) return true;
  const auto it = closed_.find(key.id);
  return it != closed_.end() && key.generation <= it->second;
}

bool IncomingWindows::KeepEarly(WindowKey key, const wire::DataHeader& header, ByteSpan chunk) {
  // Every window may be early at once, but no window that could not be opened.
  const size_t bytes = sizeof(EarlyChunk) + chunk.size();
  if (early_bytes_ + bytes > kMaxEarlyBytes) return false;
  if (!early_.contains(key) && early_.size() >= limits_.max_open) return false;
  early_[key].chunks.push_back({header, std::vector<uint8_t>(chunk.begin(), chunk.end())});
  early_bytes_ += bytes;
  return true;
}

bool IncomingWindows::KeepEarlyFinished(WindowKey key) {
  if (!early_.contains(key) && early_.size() >= limits_.max_open) return false;
  early_[key].finished = true;
  return true;
}

bool IncomingWindows::BeginReplay(WindowKey key) {
  const auto it = early_.find(key);
  if (it == early_.end()) return false;
  Early early = std::move(it->second);
  early_.erase(it);
  for (const EarlyChunk& c : early.chunks) early_bytes_ -= sizeof(EarlyChunk) + c.chunk.size();
  if (!early.chunks.empty()) replays_.push_back({key, std::move(early.chunks)});
  return early.finished;
}

const IncomingWindows::Replay* IncomingWindows::FindReplay(WindowKey key) const {
  const auto it = std::ranges::find(replays_, key, &Replay::key);
  return it == replays_.end() ? nullptr : &*it;
}

void IncomingWindows::AppendToReplay(WindowKey key, const wire::DataHeader& header, ByteSpan chunk) {
  const auto replay = std::ranges::find(replays_, key, &Replay::key);
  replay->chunks.push_back({header, std::vector<uint8_t>(chunk.begin(), chunk.end())});
}

const IncomingWindows::EarlyChunk* IncomingWindows::NextReplayed(WindowKey key) {
  const auto replay = std::ranges::find(replays_, key, &Replay::key);
  if (replay == replays_.end() || replay->next == replay->chunks.size()) return nullptr;
  return &replay->chunks[replay->next++];
}

bool IncomingWindows::Close(WindowKey key, wire::CloseReason reason) {
  const auto it = open_.find(key);
  if (it == open_.end()) return false;
  if (auto blocks = it->second->Close(reason)) closed_blocks_.push_back(std::move(blocks));
  std::unique_ptr<WindowRx> window = std::move(it->second);
  open_.erase(it);
  QueueClose(key, std::move(window));
  return true;
}

void IncomingWindows::QueueClose(WindowKey key, std::unique_ptr<WindowRx> window) {
  MarkClosed(key);
  MakeRoomForClosing();
  Closing closing;
  // A bit per chunk that came, one that was taken and one of the CLOSE, and the segments' numbers.
  closing.bytes = 256 + (size_t{window->high_count()} + window->low_count()) * 3 / 8;
  closing_bytes_ += closing.bytes;
  closing.window = std::move(window);
  closing.age = next_age_++;
  for (const wire::WindowCloseFrame& frame : closing.window->CloseFrames()) {
    closing.unacked.push_back(frame.first);
    pending_.push_back({key, frame.first, true, {}});
  }
  closing_[key] = std::move(closing);
}

void IncomingWindows::ForgetClosing(std::map<WindowKey, Closing>::iterator closing) {
  closing_bytes_ -= closing->second.bytes;
  closing_.erase(closing);
}

void IncomingWindows::MakeRoomForClosing() {
  while (!closing_.empty() && (closing_.size() >= kMaxClosing || closing_bytes_ > kMaxClosingBytes)) {
    ForgetClosing(std::min_element(closing_.begin(), closing_.end(),
                                   [](const auto& a, const auto& b) { return a.second.age < b.second.age; }));
  }
  const auto is_dead = [this](const PendingClose& close) { return !closing_.contains(close.key); };
  if (pending_.size() >= kMaxPendingCloses) std::erase_if(pending_, is_dead);
  if (repeats_.size() >= kMaxPendingCloses) std::erase_if(repeats_, is_dead);
}

void IncomingWindows::MarkClosed(WindowKey key) {
  uint8_t& generation = closed_[key.id];
  generation = std::max(generation, key.generation);
  while (closed_.size() > kRememberedIds) {
    forgotten_below_ = closed_.begin()->first + 1;
    closed_.erase(closed_.begin());
  }
}

std::optional<wire::WindowCloseFrame> IncomingWindows::PeekClose() {
  while (!pending_.empty()) {
    const PendingClose& next = pending_.front();
    const auto it = closing_.find(next.key);
    if (it != closing_.end()) {
      for (const wire::WindowCloseFrame& frame : it->second.window->CloseFrames()) {
        if (frame.first == next.first) return frame;
      }
    }
    pending_.pop_front();
  }
  return std::nullopt;
}

void IncomingWindows::PopClose(Instant now) {
  PendingClose sent = pending_.front();
  pending_.pop_front();
  if (!sent.again) return;
  sent.again = false;
  sent.due = now + kRepeatAfter;
  repeats_.push_back(sent);
}

void IncomingWindows::RequestMissing(WindowKey key) {
  const WindowRx* window = Find(key);
  if (window == nullptr || window->HighComplete() || std::ranges::find(nacks_, key) != nacks_.end()) return;
  std::erase_if(nacks_, [this](WindowKey k) { return !open_.contains(k); });
  nacks_.push_back(key);
}

std::optional<wire::WindowNackFrame> IncomingWindows::PeekNack(size_t max_bytes,
                                                               std::vector<uint8_t>* bitmap) {
  for (; !nacks_.empty(); nacks_.pop_front()) {
    const WindowRx* window = Find(nacks_.front());
    if (window == nullptr) continue;
    WindowRx::Missing missing = window->MissingHigh(max_bytes);
    if (missing.bitmap.empty()) continue;
    *bitmap = std::move(missing.bitmap);
    return wire::WindowNackFrame{nacks_.front().id, nacks_.front().generation, missing.first, *bitmap};
  }
  return std::nullopt;
}

void IncomingWindows::PromoteRepeats(Instant now) {
  while (!repeats_.empty() && repeats_.front().due <= now) {
    pending_.push_back(repeats_.front());
    repeats_.pop_front();
  }
}

void IncomingWindows::OnCloseAcked(WindowKey key, uint32_t first) {
  const auto it = closing_.find(key);
  if (it == closing_.end()) return;
  std::erase(it->second.unacked, first);
  if (it->second.unacked.empty()) ForgetClosing(it);
}

void IncomingWindows::OnCloseLost(WindowKey key, uint32_t first) {
  const auto it = closing_.find(key);
  if (it == closing_.end()) return;
  const std::vector<uint32_t>& unacked = it->second.unacked;
  if (std::find(unacked.begin(), unacked.end(), first) == unacked.end()) return;
  pending_.push_back({key, first, false, {}});
}

ByteCount IncomingWindows::buffered() const {
  ByteCount total(static_cast<int64_t>(early_bytes_));
  for (const auto& [key, window] : open_) total += window->buffered();
  return total;
}

}  // namespace longhaul::transport
