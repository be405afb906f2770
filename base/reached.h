// Marks of rare states: the simulator's sweep tells which of them no run has reached, so that a test that has
// stopped testing is noticed. After FoundationDB's CODE_PROBE.
//
//   LH_REACHED("a probe carries a chunk");
//
// A mark is a static counter, counted without a lock: two instructions, at states that are rare. Names are
// unique. For functions in .cc files only: what is inlined elsewhere would be there twice.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

namespace longhaul {

struct alignas(16) Mark {
  const char* name;
  std::atomic<uint64_t> times = 0;

  // Threads that count at once may lose some: whether it was reached stays true.
  void Hit() { times.store(times.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
};

// Of all that is linked into this program.
std::span<Mark> AllMarks();

}  // namespace longhaul

// The linker gathers what is in one section, and names its ends.
#define LH_REACHED(text)                                                                              \
  do {                                                                                                \
    [[gnu::section("longhaul_marks"), gnu::used]] static constinit ::longhaul::Mark lh_mark = {text}; \
    lh_mark.Hit();                                                                                    \
  } while (false)
