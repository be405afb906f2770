// The reliable, ordered byte stream for control messages: one per direction of a connection.
//
// The sender keeps bytes until they are acknowledged (bounded); what is lost is sent again before anything
// new. The receiver puts pieces in order (bounded) and hands bytes out exactly once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/interval_set.h"
#include "longhaul/status.h"
#include "proto/frames.h"
#include "transport/core/connection/event_queue.h"

namespace longhaul::transport {

class ControlSendStream {
 public:
  explicit ControlSendStream(size_t max_backlog) : max_backlog_(max_backlog) {}

  void SetMaxBacklog(size_t bytes) { max_backlog_ = bytes; }

  // Errors: kResourceExhausted when more than max_backlog bytes would be unacknowledged; nothing is taken.
  Status Append(ByteSpan bytes);
  bool HasData() const { return !lost_.empty() || next_new_ < end(); }
  // Takes the next piece of at most `max_bytes`; its span is valid until the next call. nullopt: nothing
  // waits.
  std::optional<wire::ControlFrame> Next(size_t max_bytes);
  void OnAcked(uint64_t offset, uint64_t length);
  void OnLost(uint64_t offset, uint64_t length);
  // Bytes not yet acknowledged.
  size_t backlog() const { return buffer_.size(); }

 private:
  struct Piece {
    uint64_t offset = 0;
    uint64_t length = 0;
  };
  uint64_t end() const { return base_ + buffer_.size(); }

  size_t max_backlog_;
  uint64_t base_ = 0;  // stream offset of buffer_'s first byte; everything before is acknowledged
  uint64_t next_new_ = 0;
  std::deque<uint8_t> buffer_;
  std::deque<Piece> lost_;
  IntervalSet acked_;  // beyond base_
  std::vector<uint8_t> scratch_;
};

class ControlReceiveStream {
 public:
  // Bytes that may wait for a gap to be filled.
  static constexpr size_t kMaxBuffered = 4u << 20;
  // Pieces that may wait, however short they are: each costs a map node.
  static constexpr size_t kMaxPieces = 8192;

  // Smaller bounds, for a peer that is not trusted with more yet.
  void SetLimits(size_t max_buffered, size_t max_pieces) {
    max_buffered_ = max_buffered;
    max_pieces_ = max_pieces;
  }
  size_t max_buffered() const { return max_buffered_; }

  // Takes a piece; appends to `ready` what is now in order. kProtocolViolation beyond the bounds on bytes and
  // pieces, and for an empty piece.
  Status OnFrame(const wire::ControlFrame& frame, std::vector<uint8_t>* ready);

 private:
  uint64_t next_ = 0;
  size_t max_buffered_ = kMaxBuffered;
  size_t max_pieces_ = kMaxPieces;
  size_t buffered_ = 0;
  std::map<uint64_t, std::vector<uint8_t>> pieces_;  // by offset; may overlap
};

// Both directions of one connection's control stream, and the events that they cause.
class ControlChannel {
 public:
  // What is kept for a peer, in bytes and pieces.
  struct Limits {
    size_t received =
        ControlReceiveStream::kMaxBuffered;  // out of order, or before the connection is announced
    size_t pieces = ControlReceiveStream::kMaxPieces;
    size_t backlog = 0;  // unacknowledged
  };
  // events must outlive this.
  ControlChannel(const Limits& limits, EventQueue* events) : events_(events), send_(limits.backlog) {
    SetLimits(limits);
  }
  void SetLimits(const Limits& limits);

  ControlSendStream& send() { return send_; }
  // As ControlSendStream::Append; ControlWritable follows a refusal.
  Status Send(ByteSpan bytes);
  void OnAcked(uint64_t offset, uint64_t length);
  // As ControlReceiveStream::OnFrame; ControlBytes follow.
  Status OnFrame(const wire::ControlFrame& frame);

 private:
  EventQueue* events_;
  ControlSendStream send_;
  ControlReceiveStream receive_;
  bool refused_ = false;
};

}  // namespace longhaul::transport
