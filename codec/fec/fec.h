// The erasure coder in production: liberasurecode with the backend isa_l_rs_cauchy, without checksums.
//
// What the library is like decides how it is used (docs/decisions/0001-fec-by-liberasurecode.md):
//   - Creating or destroying a descriptor beside running ones crashes. So the process makes all of them once,
//   in
//     the first Create(), and never destroys any; later coders share them.
//   - It wants an 80-byte header in front of every fragment. Without checksums the header depends only on
//     (k, symbol length, index), so it never travels: it is restored from a template which this process made
//     by encoding zeros. No header from the network ever reaches the library.
//   - An error costs a line in the system log. So every count and length is validated before, and the first
//     Create() silences the process's syslog below LOG_CRIT.
//
// Thread-safe: one coder, or several, may serve any number of threads. The first Create() belongs before the
// threads. Each thread that codes keeps a scratch buffer of the largest block it has seen.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "codec/fec/erasure_coder.h"
#include "longhaul/status.h"

namespace longhaul::codec {

// liberasurecode's 80-byte fragment headers, made here instead of sent.
//
// One set holds the headers of all 32 fragments of a block with k source symbols of a given length. The sets
// are remembered per (k, length), a bounded number of them: lengths come from windows that peers open.
// Thread-safe.
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

// What every erasure coder checks before it touches a byte, so that all of them refuse alike.

// Symbols are a multiple of this many bytes: the strictest unit among liberasurecode's backends.
inline constexpr size_t kSymbolAlignment = 16;

bool IsBlockSize(int k);

// Stops the process when Encode's REQUIRES is broken: the arguments are ours, never the network's.
void CheckEncodeArguments(int k, size_t symbol_bytes, std::span<const ByteSpan> source,
                          std::span<const MutableByteSpan> repair);

// The errors that ErasureCoder::Decode promises. Ok means: k symbols or more, all in range, distinct and of
// the right length (or nothing is missing).
Status CheckDecodeArguments(int k, size_t symbol_bytes, std::span<const MutableByteSpan> source,
                            uint32_t present, std::span<const RepairSymbol> repair);

class ErasureCodeLibrary final : public ErasureCoder {
 public:
  // Whether the backend can be loaded on this machine; a parameter so that a test can simulate its absence.
  using BackendProbe = bool (*)();
  static bool BackendAvailable();

  // Errors: kUnavailable (the backend's shared library is missing; the message names the package),
  //         kInternal (the library refused a descriptor).
  static Result<std::unique_ptr<ErasureCodeLibrary>> Create(BackendProbe probe = &BackendAvailable);

  ~ErasureCodeLibrary() override = default;
  ErasureCodeLibrary(const ErasureCodeLibrary&) = delete;
  ErasureCodeLibrary& operator=(const ErasureCodeLibrary&) = delete;

  bool Supports(int k) const override;
  void Encode(int k, size_t symbol_bytes, std::span<const ByteSpan> source,
              std::span<const MutableByteSpan> repair) override;
  // Beyond the contract's errors: kInternal when the library fails on valid arguments (out of memory).
  Status Decode(int k, size_t symbol_bytes, std::span<const MutableByteSpan> source, uint32_t present,
                std::span<const RepairSymbol> repair) override;

  // For the start-up line of a log: the library, its version, the backend.
  static std::string_view Description();
  // Descriptors that this process ever made; constant after the first Create().
  static int DescriptorsCreated();
  // Calls that went into the library, and header sets now remembered (at most kMaxHeaderSets).
  static constexpr size_t kMaxHeaderSets = 64;
  uint64_t library_calls() const { return library_calls_.load(std::memory_order_relaxed); }
  size_t header_sets() const { return headers_.size(); }
  // The headers for blocks of k symbols, taken from an encoding of zeros; null when the library fails.
  // REQUIRES: Create() succeeded before, k is a block size, symbol_bytes a positive multiple of 16.
  static std::shared_ptr<const FragmentHeaders> MakeHeaders(int k, size_t symbol_bytes);

 private:
  ErasureCodeLibrary();

  FragmentHeaderCache headers_;
  std::atomic<uint64_t> library_calls_{0};
};

}  // namespace longhaul::codec
