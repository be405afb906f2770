#include "transport/core/connection/packet_builder.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace longhaul::transport {

void PacketBuilder::StartShort(wire::ConnectionId destination, wire::PacketNumber number, bool key_phase) {
  is_short_ = true;
  short_.key_phase = key_phase;
  short_.destination = destination;
  short_.packet_number = number;
  sent_.number = number;
  header_bytes_ = position_ = wire::kShortHeaderBytes;
}

void PacketBuilder::StartLong(wire::LongType type, uint16_t version, wire::ConnectionId destination,
                              wire::ConnectionId source, wire::PacketNumber number, ByteSpan cookie) {
  sent_.number = number;
  ByteWriter writer(out_);
  wire::Encode(wire::LongHeader{type, version, destination, source, number}, writer);
  if (wire::HasCookie(type)) wire::EncodeCookie(cookie, writer);
  LH_CHECK(writer.ok());
  header_bytes_ = position_ = writer.size();
}

size_t PacketBuilder::room() const {
  const size_t used = position_ + wire::kTagBytes;
  return out_.size() > used ? out_.size() - used : 0;
}

// A DATA packet is laid out header | data header | frames | chunk. The chunk is written first, at its place
// without frames; frames that are added later push it back. Only short chunks have room for that, so the move
// is small and rare.
void PacketBuilder::SetChunk(const WindowTx::Item& item, uint32_t timestamp_us) {
  LH_CHECK(is_short_ && !has_content());
  LH_CHECK_OP(item.size() + wire::kDataHeaderBytes, <=, room());
  has_chunk_ = true;
  data_ = item.header;
  data_.timestamp_us = timestamp_us;
  header_bytes_ = wire::kShortHeaderBytes + wire::kDataHeaderBytes;
  position_ = header_bytes_;
  std::memcpy(out_.data() + position_, item.first.data(), item.first.size());
  position_ += item.first.size();
  if (!item.second.empty()) std::memcpy(out_.data() + position_, item.second.data(), item.second.size());
  position_ += item.second.size();
  chunk_size_ = item.size();
  sent_.chunk = item.chunk;
  sent_.cut = item.cut;
  sent_.ack_eliciting = true;
}

bool PacketBuilder::Add(const wire::Frame& frame) {
  const size_t size = wire::EncodedSize(frame);
  if (size > room()) return false;
  uint8_t* const place = out_.data() + position_ - chunk_size_;
  if (chunk_size_ > 0) std::memmove(place + size, place, chunk_size_);
  ByteWriter writer(MutableByteSpan(place, size));
  LH_CHECK(wire::Encode(frame, writer));
  LH_CHECK_OP(writer.size(), ==, size);
  position_ += size;
  frames_size_ += size;
  sent_.ack_eliciting = sent_.ack_eliciting || wire::IsAckEliciting(frame);
  return true;
}

void PacketBuilder::PadTo(size_t size) {
  const size_t target = std::min(size, out_.size());
  const size_t used = position_ + wire::kTagBytes;
  if (used < target) Add(wire::PaddingFrame{static_cast<uint32_t>(target - used)});
}

size_t PacketBuilder::Seal(PacketProtection& protection) {
  if (is_short_) {
    short_.has_data = has_chunk_;
    ByteWriter writer(out_);
    wire::Encode(short_, writer);
    if (has_chunk_) {
      data_.frames_length = static_cast<uint16_t>(frames_size_);
      wire::Encode(data_, writer);
    }
    LH_CHECK_OP(writer.size(), ==, header_bytes_);
  }
  const MutableByteSpan body = out_.subspan(header_bytes_, position_ - header_bytes_);
  protection.Seal(sent_.number, 0, out_.first(header_bytes_), body, out_.subspan(position_, wire::kTagBytes));
  position_ += wire::kTagBytes;
  sent_.bytes = ByteCount(static_cast<int64_t>(position_));
  sent_.ack_eliciting = sent_.ack_eliciting && !leaves_flight_;
  sent_.in_flight = sent_.ack_eliciting;
  return position_;
}

}  // namespace longhaul::transport
