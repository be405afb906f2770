#include "transport/core/connection/event_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "transport/core/connection/windows.h"

namespace longhaul::transport {

EventQueue::Entry* EventQueue::Add(Kind kind) {
  if (!std::exchange(is_ready_, true) && ready_ != nullptr) ready_->push_back(owner_);
  if (next_ == entries_.size()) Clear();
  // The end of the connection always fits.
  if (entries_.size() - next_ >= kMaxEntries && kind != Kind::kClosed) {
    ++dropped_;
    return nullptr;
  }
  Entry& entry = entries_.emplace_back();
  entry.kind = kind;
  return &entry;
}

void EventQueue::Push(Kind kind, WindowKey key) {
  if (Entry* entry = Add(kind)) entry->key = key;
}

void EventQueue::Announce() {
  if (std::exchange(announced_, true)) return;
  Push(Kind::kConnected);
  if (unpolled_control() > 0) PushControl();
}

Status EventQueue::Check() const {
  if (dropped_ == 0) return Status::Ok();
  return Status(StatusCode::kProtocolViolation,
                "one datagram causes more than " + std::to_string(kMaxEntries) + " events");
}

void EventQueue::PushOpened(const wire::WindowOpenFrame& open) {
  Entry* entry = Add(Kind::kWindowOpened);
  if (entry == nullptr) return;
  entry->key = {open.window_id, open.generation};
  entry->open = open;
}

void EventQueue::PushState(WindowKey key) {
  for (size_t i = entries_.size(); i > next_; --i) {
    Entry& entry = entries_[i - 1];
    if (entry.kind != Kind::kWindowState || entry.key != key) continue;
    if (i == entries_.size()) return;
    entry.kind = Kind::kNothing;
    break;
  }
  Push(Kind::kWindowState, key);
}

void EventQueue::PushClosed(WindowKey key, std::unique_ptr<WindowTx> window) {
  Entry* entry = Add(Kind::kWindowClosed);
  if (entry == nullptr) return;
  entry->key = key;
  entry->window = window.get();
  closed_.push_back(std::move(window));
}

void EventQueue::PushEnd(Status why) {
  end_ = std::move(why);
  Push(Kind::kClosed);
}

void EventQueue::PushControl() {
  if (next_ < entries_.size() && entries_.back().kind == Kind::kControl) {
    entries_.back().control_end = control_.size();
  } else if (Entry* entry = Add(Kind::kControl)) {
    entry->control_end = control_.size();
  }
}

void EventQueue::Forget(WindowKey outgoing) {
  for (size_t i = next_; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.kind == Kind::kWindowClosed && entry.key == outgoing) entry.kind = Kind::kNothing;
  }
}

const EventQueue::Entry* EventQueue::Front() {
  while (next_ < entries_.size() && entries_[next_].kind == Kind::kNothing) ++next_;
  return next_ < entries_.size() ? &entries_[next_] : nullptr;
}

Result<std::optional<Event>> EventQueue::Poll(Windows* windows, Duration smoothed_rtt) {
  while (const Entry* front = Front()) {
    Result<std::optional<Event>> event = EventOf(*front, windows, smoothed_rtt);
    if (!event.ok() || event->has_value()) return event;
  }
  is_ready_ = false;
  return std::optional<Event>();
}

// Pops the entry unless there may be more to it; nullopt: there was nothing (more) to it.
Result<std::optional<Event>> EventQueue::EventOf(const Entry& front, Windows* windows,
                                                 Duration smoothed_rtt) {
  const auto one = [](auto event) { return std::optional<Event>(std::move(event)); };
  if (front.kind == Kind::kControl) {
    const ByteSpan bytes = NextControl(front);
    if (!bytes.empty()) return one(event::ControlBytes{bytes});
  }
  if (front.kind == Kind::kChunks) {
    const Result<std::optional<event::Chunk>> chunk = windows->PollChunk(front.key);
    if (chunk.ok() && chunk->has_value()) return one(**chunk);
    if (!chunk.ok()) {
      ++next_;
      return chunk.status();
    }
  }
  const Entry entry = front;
  ++next_;
  switch (entry.kind) {
    case Kind::kAccepted:
      return one(event::Accepted{});
    case Kind::kConnected:
      return one(event::Connected{});
    case Kind::kControlWritable:
      return one(event::ControlWritable{});
    case Kind::kWindowOpened:
      return one(event::WindowOpened{entry.key, entry.open});
    case Kind::kWindowState:
      if (const WindowRx* window = windows->Polled(entry.key)) {
        return one(event::WindowState{entry.key, window->View(), smoothed_rtt});
      }
      break;
    case Kind::kWindowClosed:
      return one(event::WindowClosed{entry.key, entry.window->close_reason(), &entry.window->receipt(),
                                     entry.window->stats()});
    case Kind::kClosed:
      return one(event::Closed{end_});
    case Kind::kNothing:
    case Kind::kControl:
    case Kind::kChunks:
      break;
  }
  return std::optional<Event>();
}

void EventQueue::Clear() {
  entries_.clear();
  next_ = 0;
}

ByteSpan EventQueue::NextControl(const Entry& entry) {
  LH_CHECK_OP(control_next_, <=, entry.control_end);
  const size_t bytes = std::min(entry.control_end - control_next_, event::ControlBytes::kMaxBytes);
  return ByteSpan(control_).subspan(std::exchange(control_next_, control_next_ + bytes), bytes);
}

void EventQueue::EndLoans() {
  closed_.clear();
  if (control_next_ == 0 || control_next_ < control_.size()) return;
  control_.clear();
  control_next_ = 0;
  if (control_.capacity() > kKeptControlBytes) control_.shrink_to_fit();
}

}  // namespace longhaul::transport
