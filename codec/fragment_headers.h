// liberasurecode's 80-byte fragment headers, made here instead of sent.
//
// One set holds the headers of all 32 fragments of a block with k source symbols of a given length. The sets
// are remembered per (k, length), a bounded number of them: lengths come from windows that peers open.
// Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "codec/erasure_coder.h"

namespace longhaul::codec {

inline constexpr size_t kFragmentHeaderBytes = 80;
using FragmentHeaders = std::array<std::array<uint8_t, kFragmentHeaderBytes>, kMaxBlockSymbols>;

class FragmentHeaderCache {
 public:
  // Makes the set for (k, symbol_bytes); null when it cannot. Called without a lock held, so perhaps twice
  // for the same.
  using Maker = std::function<std::shared_ptr<const FragmentHeaders>(int k, size_t symbol_bytes)>;

  FragmentHeaderCache(size_t capacity, Maker make) : capacity_(capacity), make_(std::move(make)) {}

  // The set, made when it is not remembered; the oldest one is forgotten when there are too many.
  std::shared_ptr<const FragmentHeaders> Get(int k, size_t symbol_bytes);
  size_t size() const;

 private:
  struct Entry {
    int k = 0;
    size_t symbol_bytes = 0;
    std::shared_ptr<const FragmentHeaders> headers;
  };
  std::shared_ptr<const FragmentHeaders> Find(int k, size_t symbol_bytes) const;  // REQUIRES: lock held

  const size_t capacity_;
  const Maker make_;
  mutable std::shared_mutex mutex_;
  std::vector<Entry> entries_;
  size_t oldest_ = 0;
};

}  // namespace longhaul::codec
