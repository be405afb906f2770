// State that a fuzzer prepares once and gets back for every input by copying memory: building a server and
// its members costs far more than what an input then does with them.
//
//   Arena::Open();  state = new World(kind);  Arena::Close();  kept = Arena::Keep();
//   for each input:  Arena::Restore(*kept);  Arena::Open();  ... use state ...;  Arena::Close();
//
// While it is open every allocation of the program (new, malloc and their like) comes from one mapped region;
// Restore puts that region, and AddressSanitizer's view of it, back as Keep found it. Out-of-bounds access
// and use after free are found as on the usual heap, but reports do not say who allocated. Objects must not
// be reachable from anything outside of the arena; static locals never are in it. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace longhaul::fuzz {

class Arena {
 public:
  class Kept;

  // The region is empty.
  static void Clear();
  static void Open();
  static void Close();
  static const Kept* Keep();  // for good
  static void Restore(const Kept& kept);

  // --- What an input has cost ---
  static size_t live_bytes();         // now
  static uint64_t allocated_bytes();  // since Clear or Restore
};

// One prepared State of each kind. State: made from a kind; it and all that it uses live in the arena.
// LONGHAUL_FUZZ_FRESH=1 in the environment makes each anew on the usual heap: for full reports.
template <typename State>
class Prepared {
 public:
  // Calls use(state) with the state as it was made.
  template <typename Use>
  void With(uint8_t kind, Use use) {
    if (fresh_) {
      State state(kind);
      return use(state);
    }
    One& one = ones_[kind];
    if (one.kept == nullptr) {
      if (!warm_) {
        State first(kind);  // what is made once
        use(first);
        warm_ = true;
      }
      Arena::Clear();
      Arena::Open();
      one.state = new State(kind);
      Arena::Close();
      one.kept = Arena::Keep();
    }
    Arena::Restore(*one.kept);
    Arena::Open();
    use(*one.state);
    Arena::Close();
  }

 private:
  struct One {
    const Arena::Kept* kept = nullptr;
    State* state = nullptr;
  };
  const bool fresh_ = std::getenv("LONGHAUL_FUZZ_FRESH") != nullptr;
  bool warm_ = false;
  One ones_[256];
};

}  // namespace longhaul::fuzz
