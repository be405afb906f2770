#include "transport/core/connection/control_stream.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace longhaul::transport {

Status ControlSendStream::Append(ByteSpan bytes) {
  if (buffer_.size() + bytes.size() > max_backlog_) {
    return Status(
        StatusCode::kResourceExhausted,
        "control stream: more than " + std::to_string(max_backlog_) + " bytes are not yet acknowledged");
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return Status::Ok();
}

std::optional<wire::ControlFrame> ControlSendStream::Next(size_t max_bytes) {
  if (max_bytes == 0) return std::nullopt;
  Piece piece;
  while (!lost_.empty()) {
    Piece& front = lost_.front();
    if (front.offset < base_) {  // its beginning was acknowledged meanwhile
      const uint64_t skip = std::min(base_ - front.offset, front.length);
      front.offset += skip;
      front.length -= skip;
    }
    if (front.length == 0) {
      lost_.pop_front();
      continue;
    }
    piece = {front.offset, std::min<uint64_t>(front.length, max_bytes)};
    front.offset += piece.length;
    front.length -= piece.length;
    break;
  }
  if (piece.length == 0) {
    if (next_new_ >= end()) return std::nullopt;
    piece = {next_new_, std::min<uint64_t>(end() - next_new_, max_bytes)};
    next_new_ += piece.length;
  }
  const auto first = buffer_.begin() + static_cast<std::ptrdiff_t>(piece.offset - base_);
  scratch_.assign(first, first + static_cast<std::ptrdiff_t>(piece.length));
  return wire::ControlFrame{piece.offset, scratch_};
}

void ControlSendStream::OnAcked(uint64_t offset, uint64_t length) {
  if (length == 0 || offset + length <= base_) return;
  LH_CHECK_OP(offset + length, <=, next_new_);
  acked_.Add(std::max(offset, base_), offset + length - 1);
  const auto& ranges = acked_.ranges();
  if (ranges.empty() || ranges.front().first > base_) return;
  const uint64_t new_base = ranges.front().last + 1;
  buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(new_base - base_));
  base_ = new_base;
  acked_.RemoveBelow(base_);
}

void ControlSendStream::OnLost(uint64_t offset, uint64_t length) {
  if (offset + length <= base_) return;
  lost_.push_back({offset, length});
}

Status ControlReceiveStream::OnFrame(const wire::ControlFrame& frame, std::vector<uint8_t>* ready) {
  if (frame.data.empty() || pieces_.size() >= max_pieces_) {
    return Status(StatusCode::kProtocolViolation, "control stream comes in too many or empty pieces");
  }
  const uint64_t end = frame.offset + frame.data.size();
  if (end <= next_) return Status::Ok();
  if (end - next_ > max_buffered_ || buffered_ + frame.data.size() > max_buffered_) {
    return Status(StatusCode::kProtocolViolation,
                  "control stream runs further ahead than the receiver allows");
  }
  if (frame.offset > next_) {
    std::vector<uint8_t>& piece = pieces_[frame.offset];
    if (piece.size() < frame.data.size()) {
      buffered_ += frame.data.size() - piece.size();
      piece.assign(frame.data.begin(), frame.data.end());
    }
    return Status::Ok();
  }
  const auto append = [&](uint64_t offset, ByteSpan data) {
    const uint64_t skip = next_ - offset;
    if (skip >= data.size()) return;
    ready->insert(ready->end(), data.begin() + static_cast<std::ptrdiff_t>(skip), data.end());
    next_ = offset + data.size();
  };
  append(frame.offset, frame.data);
  while (!pieces_.empty() && pieces_.begin()->first <= next_) {
    append(pieces_.begin()->first, pieces_.begin()->second);
    buffered_ -= pieces_.begin()->second.size();
    pieces_.erase(pieces_.begin());
  }
  return Status::Ok();
}

void ControlChannel::SetLimits(const Limits& limits) {
  receive_.SetLimits(limits.received, limits.pieces);
  send_.SetMaxBacklog(limits.backlog);
}

Status ControlChannel::Send(ByteSpan bytes) {
  Status status = send_.Append(bytes);
  if (!status.ok()) refused_ = true;
  return status;
}

void ControlChannel::OnAcked(uint64_t offset, uint64_t length) {
  send_.OnAcked(offset, length);
  if (send_.backlog() == 0 && std::exchange(refused_, false)) {
    events_->Push(EventQueue::Kind::kControlWritable);
  }
}

Status ControlChannel::OnFrame(const wire::ControlFrame& frame) {
  std::vector<uint8_t>* ready = events_->control();
  const size_t before = ready->size();
  if (Status status = receive_.OnFrame(frame, ready); !status.ok()) return status;
  if (ready->size() == before) return Status::Ok();
  if (events_->announced()) {
    events_->PushControl();
  } else if (events_->unpolled_control() > receive_.max_buffered()) {
    return Status(StatusCode::kProtocolViolation, "too much on the control stream before the path is known");
  }
  return Status::Ok();
}

}  // namespace longhaul::transport
