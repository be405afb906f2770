// Datagrams for one peer that leave with one system call: of one size, the last may be shorter.
#pragma once

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "transport/udp/datagram_sender.h"

namespace longhaul::offload {

class DatagramBatch {
 public:
  bool empty() const { return bytes_ == 0; }
  // Whether a datagram of that size may be added.
  bool Takes(size_t size) const {
    if (empty()) return size <= udp::kMaxBatchBytes;
    return !closed_ && size <= segment_ && count_ < udp::kMaxSegments && bytes_ + size <= udp::kMaxBatchBytes;
  }
  // Where the next datagram of that size goes. REQUIRES: Takes(size).
  MutableByteSpan Place(size_t size) {
    memory_.resize(std::max(memory_.size(), bytes_ + size));
    return MutableByteSpan(memory_).subspan(bytes_, size);
  }
  void Add(size_t size) {
    if (empty()) segment_ = size;
    closed_ = size < segment_;
    bytes_ += size;
    ++count_;
  }
  ByteSpan bytes() const { return ByteSpan(memory_).first(bytes_); }
  size_t segment() const { return segment_; }
  // The first `bytes`, whole datagrams, are gone.
  void Drop(size_t bytes) {
    std::copy(memory_.begin() + static_cast<ptrdiff_t>(bytes),
              memory_.begin() + static_cast<ptrdiff_t>(bytes_), memory_.begin());
    bytes_ -= bytes;
    count_ = segment_ == 0 ? 0 : (bytes_ + segment_ - 1) / segment_;
    if (empty()) closed_ = false;
  }

 private:
  std::vector<uint8_t> memory_;
  size_t bytes_ = 0;
  size_t segment_ = 0;
  size_t count_ = 0;
  bool closed_ = false;
};

}  // namespace longhaul::offload
