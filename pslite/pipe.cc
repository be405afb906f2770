#include "pslite/pipe.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace longhaul::pslite {

using wire::ReliabilityClass;

bool Pipe::MayOpen() const {
  if (queue_.empty() || sent_.size() >= kMaxOpenWindows) return false;
  return sent_.empty() ||
         sent_bytes_ + queue_.front().bytes.size + wire::kMaxWindowMetadataBytes <= kMaxOpenBytes;
}

bool Pipe::HasWork() const {
  if (connection_->state() != transport::Connection::State::kConnected) return false;
  return MayOpen() || (!sent_.empty() && sent_.rbegin()->second.submitted < sent_.rbegin()->second.chunks);
}

Status Pipe::Open() {
  Outgoing next;
  const size_t most = connection_->MaxChunkBytes();
  static_cast<Queued&>(next) = queue_.front();
  // A short message needs no chunk of full length.
  next.chunk_bytes = static_cast<uint16_t>(std::min(most, (next.bytes.size + 15) / 16 * 16));
  next.chunks = static_cast<uint32_t>((next.bytes.size + next.chunk_bytes - 1) / next.chunk_bytes);
  transport::WindowOptions window;
  window.key = {next_out_, 0};
  window.high_count = next.chunks;
  window.symbol_bytes = next.chunk_bytes;
  window.fec_depth = 0;
  if (next.chunks == 1) window.fec_k = 0;
  window.metadata.resize(8);
  ByteWriter(window.metadata).U64(next.bytes.size);
  if (Status opened = connection_->OpenWindow(window); !opened.ok()) return opened;
  queue_.pop_front();
  sent_bytes_ += next.size();
  sent_.emplace(next_out_++, std::move(next));
  return {};
}

Status Pipe::Work() {
  if (!HasWork()) return {};
  if (sent_.empty() || sent_.rbegin()->second.submitted == sent_.rbegin()->second.chunks) {
    if (Status opened = Open(); !opened.ok()) return opened;
  }
  auto& [window, message] = *sent_.rbegin();
  for (size_t i = 0; i < kChunksAtOnce && message.submitted < message.chunks; ++i, ++message.submitted) {
    const ByteSpan rest = message.bytes.span().subspan(size_t{message.submitted} * message.chunk_bytes);
    const ByteSpan body = rest.first(std::min<size_t>(rest.size(), message.chunk_bytes));
    if (Status s = connection_->SubmitChunk({window, 0}, ReliabilityClass::kHigh, {}, body); !s.ok())
      return s;
  }
  return {};
}

Result<size_t> Pipe::OnWindowClosed(transport::WindowKey key, wire::CloseReason reason) {
  const auto found = sent_.find(key.id);
  if (found == sent_.end()) return size_t{0};
  if (reason != wire::CloseReason::kComplete) {
    return Status(StatusCode::kResourceExhausted, "it refuses a message of this size");
  }
  const size_t cost = found->second.cost;
  sent_bytes_ -= found->second.size();
  sent_.erase(found);
  return cost;
}

size_t Pipe::unsent() const {
  size_t cost = 0;
  for (const Queued& message : queue_) cost += message.cost;
  for (const auto& [window, message] : sent_) cost += message.cost;
  return cost;
}

Status Pipe::OnWindowOpened(transport::WindowKey key, const wire::WindowOpenFrame& open, bool stranger) {
  const auto wrong = [](const char* what) { return Status(StatusCode::kProtocolViolation, what); };
  if (key.generation != 0 || key.id < next_in_ || key.id - next_in_ >= 2 * kMaxOpenWindows)
    return wrong("a window out of order");
  if (open.low_count != 0 || open.high_count == 0 || open.symbol_bytes == 0)
    return wrong("a window that holds no message");
  Incoming message;
  message.chunks = open.high_count;
  message.chunk_bytes = open.symbol_bytes;
  const size_t bytes = message.room();
  ByteReader metadata(open.metadata);
  const uint64_t size = metadata.U64();
  if (!metadata.AtEnd() || size > bytes || size <= bytes - open.symbol_bytes)
    return wrong("a window that says another length");
  if (stranger && bytes > kMaxStrangerBytes) return wrong("a long message before the first one");
  if (incoming_.size() >= kMaxOpenWindows || (!incoming_.empty() && incoming_bytes_ + bytes > kMaxOpenBytes))
    return wrong("more messages at once than are allowed");
  try {
    message.bytes = Bytes::Of(size);
  } catch (const std::bad_alloc&) {
    return {StatusCode::kResourceExhausted, "no memory for a message of " + std::to_string(size) + " bytes"};
  }
  incoming_bytes_ += bytes;
  incoming_.emplace(key.id, std::move(message));
  return {};
}

Status Pipe::OnChunk(const transport::event::Chunk& chunk) {
  const auto found = incoming_.find(chunk.key.id);
  if (found == incoming_.end()) return {};
  Incoming& message = found->second;
  const size_t at = size_t{chunk.sequence} * message.chunk_bytes;
  if (at >= message.bytes.size) return {};
  // One that FEC has rebuilt is padded.
  const size_t length = std::min<size_t>(message.chunk_bytes, message.bytes.size - at);
  if (chunk.bytes.size() < length) return {StatusCode::kProtocolViolation, "a chunk that is too short"};
  std::memcpy(message.bytes.data.get() + at, chunk.bytes.data(), length);
  ++message.received;
  return {};
}

std::optional<Pipe::Received> Pipe::Next() const {
  const auto found = incoming_.find(next_in_);
  if (found == incoming_.end() || found->second.received < found->second.chunks) return std::nullopt;
  return Received{next_in_, found->second.bytes};
}

void Pipe::Close(uint32_t window) {
  const auto found = incoming_.find(window);
  if (found == incoming_.end()) return;
  incoming_bytes_ -= found->second.room();
  incoming_.erase(found);
  connection_->CloseWindow({window, 0}, wire::CloseReason::kComplete);
}

}  // namespace longhaul::pslite
