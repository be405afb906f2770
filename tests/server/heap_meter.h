// What this test program has on its heap, as malloc counts it, and in pages (base/pages.h), whether touched
// or not.
#pragma once

#include <cstdint>

namespace longhaul::server {

// From construction on. One may lie within another.
class HeapMeter {
 public:
  HeapMeter();
  ~HeapMeter();
  HeapMeter(const HeapMeter&) = delete;
  HeapMeter& operator=(const HeapMeter&) = delete;
  // More bytes than at the beginning, now, and the most there ever were, both together.
  int64_t grown() const;
  int64_t peak() const;

 private:
  const int64_t begin_;
  const int64_t outer_peak_;
};

}  // namespace longhaul::server
