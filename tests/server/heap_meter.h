// What this test program has on its heap, as malloc counts it, and in pages (base/pages.h), whether touched
// or not.
#pragma once

#include <cstdint>

namespace longhaul::server {

// From construction on. One at a time.
class HeapMeter {
 public:
  HeapMeter();
  // More bytes than at the beginning, now, and the most there ever were, both together.
  int64_t grown() const;
  int64_t peak() const;
};

}  // namespace longhaul::server
