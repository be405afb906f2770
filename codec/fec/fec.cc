#include "codec/fec/fec.h"

#include <liberasurecode/erasurecode.h>
#include <syslog.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace longhaul::codec {
namespace {

static_assert(sizeof(fragment_header_t) == kFragmentHeaderBytes);
// The library takes the address behind a header for aligned when the header itself is.
static_assert(kFragmentHeaderBytes % kSymbolAlignment == 0);

constexpr ec_backend_id_t kBackend = EC_BACKEND_ISA_L_RS_CAUCHY;

// One descriptor per (k, m), made once per process and never destroyed.
struct Descriptors {
  std::array<std::array<int, kMaxBlockSymbols + 1>, kMaxBlockSymbols + 1> by_k_m{};
  int count = 0;
};

std::mutex g_start_mutex;
std::atomic<const Descriptors*> g_descriptors{nullptr};

Status MakeDescriptor(int k, int m, Descriptors& all) {
  ec_args args{};
  args.k = k;
  args.m = m;
  args.w = 8;
  args.hd = m + 1;
  args.ct = CHKSUM_NONE;
  const int descriptor = liberasurecode_instance_create(kBackend, &args);
  if (descriptor <= 0) {
    return {StatusCode::kInternal, "liberasurecode refused a descriptor for k = " + std::to_string(k) +
                                       ", m = " + std::to_string(m) + ": error " +
                                       std::to_string(descriptor)};
  }
  all.by_k_m[k][m] = descriptor;
  ++all.count;
  return Status::Ok();
}

// The library finds a descriptor by walking a list, newest first: what is used most is made last.
Status MakeDescriptors(Descriptors& all) {
  for (int m = kMaxBlockSymbols; m >= 1; --m) {
    for (auto k = std::rbegin(kBlockSizes); k != std::rend(kBlockSizes); ++k) {
      if (m > ErasureCoder::MaxRepair(*k)) continue;
      if (Status status = MakeDescriptor(*k, m, all); !status.ok()) return status;
    }
  }
  return Status::Ok();
}

Status StartOnce() {
  std::lock_guard lock(g_start_mutex);
  if (g_descriptors.load(std::memory_order_acquire) != nullptr) return Status::Ok();
  setlogmask(LOG_UPTO(LOG_CRIT));
  auto all = std::make_unique<Descriptors>();
  if (Status status = MakeDescriptors(*all); !status.ok()) return status;
  g_descriptors.store(all.release(), std::memory_order_release);  // lives as long as the process
  return Status::Ok();
}

int Descriptor(int k, int m) { return g_descriptors.load(std::memory_order_acquire)->by_k_m[k][m]; }

// A buffer per thread with the alignment that the library needs; grows to the largest block seen.
struct alignas(64) CacheLine {
  uint8_t bytes[64];
};

uint8_t* Scratch(size_t bytes) {
  thread_local std::vector<CacheLine> buffer;
  const size_t lines = (bytes + sizeof(CacheLine) - 1) / sizeof(CacheLine);
  if (buffer.size() < lines) buffer.resize(lines);
  return buffer.front().bytes;
}

const char* AsChars(const uint8_t* bytes) { return reinterpret_cast<const char*>(bytes); }
char* AsChars(uint8_t* bytes) { return reinterpret_cast<char*>(bytes); }

// What liberasurecode_encode allocated.
class Encoded {
 public:
  Encoded(int k, int m, const uint8_t* data, size_t symbol_bytes) : descriptor_(Descriptor(k, m)) {
    result_ = liberasurecode_encode(descriptor_, AsChars(data), static_cast<uint64_t>(k) * symbol_bytes,
                                    &data_, &parity_, &fragment_bytes_);
  }
  ~Encoded() {
    if (ok()) liberasurecode_encode_cleanup(descriptor_, data_, parity_);
  }
  Encoded(const Encoded&) = delete;
  Encoded& operator=(const Encoded&) = delete;

  bool ok() const { return result_ == 0; }
  uint64_t fragment_bytes() const { return fragment_bytes_; }
  const char* data(int i) const { return data_[i]; }
  const char* parity(int i) const { return parity_[i]; }

 private:
  int descriptor_;
  int result_ = -1;
  char** data_ = nullptr;
  char** parity_ = nullptr;
  uint64_t fragment_bytes_ = 0;
};

// Survivors in the layout of the library: header, then payload.
class Fragments {
 public:
  Fragments(const FragmentHeaders& headers, size_t symbol_bytes)
      : headers_(headers),
        stride_(kFragmentHeaderBytes + symbol_bytes),
        next_(Scratch(stride_ * kMaxBlockSymbols)) {}

  void Add(int index, ByteSpan payload) {
    std::memcpy(next_, headers_[index].data(), kFragmentHeaderBytes);
    std::memcpy(next_ + kFragmentHeaderBytes, payload.data(), payload.size());
    pointers_[count_++] = AsChars(next_);
    next_ += stride_;
  }
  char** pointers() { return pointers_.data(); }
  int count() const { return count_; }
  size_t fragment_bytes() const { return stride_; }

 private:
  const FragmentHeaders& headers_;
  const size_t stride_;
  uint8_t* next_;
  std::array<char*, kMaxBlockSymbols> pointers_{};
  int count_ = 0;
};

// The library also recomputes every repair symbol that its descriptor has and the receiver has not. Since
// parity is nested, the descriptor that ends with the last repair symbol received does the least of that.
int SmallestRepairCount(std::span<const RepairSymbol> repair) {
  int largest = 0;
  for (const RepairSymbol& symbol : repair) largest = std::max(largest, symbol.number);
  return largest + 1;
}

}  // namespace

bool ErasureCodeLibrary::BackendAvailable() { return liberasurecode_backend_available(kBackend) == 1; }

Result<std::unique_ptr<ErasureCodeLibrary>> ErasureCodeLibrary::Create(BackendProbe probe) {
  if (!probe()) {
    return Status(StatusCode::kUnavailable,
                  "liberasurecode cannot load its backend isa_l_rs_cauchy: libisal.so.2 is missing; "
                  "install the package libisal2 (liberasurecode1 only suggests it)");
  }
  if (Status status = StartOnce(); !status.ok()) return status;
  return std::unique_ptr<ErasureCodeLibrary>(new ErasureCodeLibrary());
}

ErasureCodeLibrary::ErasureCodeLibrary() : headers_(kMaxHeaderSets, &MakeHeaders) {}

std::shared_ptr<const FragmentHeaders> ErasureCodeLibrary::MakeHeaders(int k, size_t symbol_bytes) {
  const std::vector<uint8_t> zeros(static_cast<size_t>(k) * symbol_bytes, 0);
  const int m = ErasureCoder::MaxRepair(k);
  const Encoded encoded(k, m, zeros.data(), symbol_bytes);
  if (!encoded.ok() || encoded.fragment_bytes() != kFragmentHeaderBytes + symbol_bytes) return nullptr;
  auto headers = std::make_shared<FragmentHeaders>();
  for (int i = 0; i < k; ++i) std::memcpy((*headers)[i].data(), encoded.data(i), kFragmentHeaderBytes);
  for (int i = 0; i < m; ++i) std::memcpy((*headers)[k + i].data(), encoded.parity(i), kFragmentHeaderBytes);
  return headers;
}

bool ErasureCodeLibrary::Supports(int k) const { return IsBlockSize(k); }

void ErasureCodeLibrary::Encode(int k, size_t symbol_bytes, std::span<const ByteSpan> source,
                                std::span<const MutableByteSpan> repair) {
  CheckEncodeArguments(k, symbol_bytes, source, repair);
  uint8_t* data = Scratch(static_cast<size_t>(k) * symbol_bytes);
  for (int j = 0; j < k; ++j) std::memcpy(data + j * symbol_bytes, source[j].data(), symbol_bytes);
  library_calls_.fetch_add(1, std::memory_order_relaxed);
  const Encoded encoded(k, static_cast<int>(repair.size()), data, symbol_bytes);
  LH_CHECK(encoded.ok());  // the arguments were checked: only a lack of memory is left
  LH_CHECK_OP(encoded.fragment_bytes(), ==, kFragmentHeaderBytes + symbol_bytes);
  for (size_t i = 0; i < repair.size(); ++i) {
    std::memcpy(repair[i].data(), encoded.parity(static_cast<int>(i)) + kFragmentHeaderBytes, symbol_bytes);
  }
}

Status ErasureCodeLibrary::Decode(int k, size_t symbol_bytes, std::span<const MutableByteSpan> source,
                                  uint32_t present, std::span<const RepairSymbol> repair) {
  if (Status status = CheckDecodeArguments(k, symbol_bytes, source, present, repair); !status.ok())
    return status;
  if (present == (uint32_t{1} << k) - 1) return Status::Ok();
  const auto headers = headers_.Get(k, symbol_bytes);
  if (headers == nullptr) return {StatusCode::kInternal, "liberasurecode made no fragment headers"};
  Fragments survivors(*headers, symbol_bytes);
  for (int j = 0; j < k; ++j) {
    if ((present >> j & 1) != 0) survivors.Add(j, source[j]);
  }
  for (const RepairSymbol& symbol : repair) survivors.Add(k + symbol.number, symbol.bytes);

  const int descriptor = Descriptor(k, SmallestRepairCount(repair));
  char* block = nullptr;
  uint64_t block_bytes = 0;
  library_calls_.fetch_add(1, std::memory_order_relaxed);
  const int result = liberasurecode_decode(descriptor, survivors.pointers(), survivors.count(),
                                           survivors.fragment_bytes(), 0, &block, &block_bytes);
  if (result != 0)
    return {StatusCode::kInternal, "liberasurecode_decode failed with " + std::to_string(result)};
  LH_CHECK_OP(block_bytes, ==, static_cast<size_t>(k) * symbol_bytes);
  for (int j = 0; j < k; ++j) {
    if ((present >> j & 1) == 0) std::memcpy(source[j].data(), block + j * symbol_bytes, symbol_bytes);
  }
  liberasurecode_decode_cleanup(descriptor, block);
  return Status::Ok();
}

std::string_view ErasureCodeLibrary::Description() {
  static const std::string text = [] {
    const uint32_t v = liberasurecode_get_version();
    return "liberasurecode " + std::to_string(v >> 16) + "." + std::to_string(v >> 8 & 0xff) + "." +
           std::to_string(v & 0xff) + ", backend isa_l_rs_cauchy, no checksums";
  }();
  return text;
}

int ErasureCodeLibrary::DescriptorsCreated() {
  const Descriptors* all = g_descriptors.load(std::memory_order_acquire);
  return all == nullptr ? 0 : all->count;
}

std::shared_ptr<const FragmentHeaders> FragmentHeaderCache::Find(int k, size_t symbol_bytes) const {
  for (const Entry& entry : entries_) {
    if (entry.k == k && entry.symbol_bytes == symbol_bytes) return entry.headers;
  }
  return nullptr;
}

std::shared_ptr<const FragmentHeaders> FragmentHeaderCache::Get(int k, size_t symbol_bytes) {
  {
    std::shared_lock lock(mutex_);
    if (auto headers = Find(k, symbol_bytes)) return headers;
  }
  auto made = make_(k, symbol_bytes);
  if (made == nullptr) return nullptr;
  std::unique_lock lock(mutex_);
  if (auto headers = Find(k, symbol_bytes)) return headers;  // another thread was faster
  Entry entry{k, symbol_bytes, std::move(made)};
  if (entries_.size() < capacity_) {
    entries_.push_back(entry);
  } else {
    entries_[oldest_] = entry;
    oldest_ = (oldest_ + 1) % capacity_;
  }
  return entry.headers;
}

size_t FragmentHeaderCache::size() const {
  std::shared_lock lock(mutex_);
  return entries_.size();
}

namespace {

Status Invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

Status CheckRepair(int k, size_t symbol_bytes, std::span<const RepairSymbol> repair) {
  uint32_t seen = 0;
  for (const RepairSymbol& symbol : repair) {
    if (symbol.number < 0 || symbol.number >= ErasureCoder::MaxRepair(k)) {
      return Invalid("repair symbol " + std::to_string(symbol.number) +
                     " does not exist for k = " + std::to_string(k));
    }
    if (symbol.bytes.size() != symbol_bytes) {
      return Invalid("repair symbol of " + std::to_string(symbol.bytes.size()) + " bytes in a block of " +
                     std::to_string(symbol_bytes));
    }
    const uint32_t bit = 1u << symbol.number;
    if (seen & bit) return Invalid("repair symbol " + std::to_string(symbol.number) + " twice");
    seen |= bit;
  }
  return Status::Ok();
}

}  // namespace

bool IsBlockSize(int k) { return std::ranges::find(kBlockSizes, k) != std::end(kBlockSizes); }

void CheckEncodeArguments(int k, size_t symbol_bytes, std::span<const ByteSpan> source,
                          std::span<const MutableByteSpan> repair) {
  LH_CHECK(IsBlockSize(k));
  LH_CHECK_OP(symbol_bytes, >, 0u);
  LH_CHECK_OP(symbol_bytes % kSymbolAlignment, ==, 0u);
  LH_CHECK_OP(source.size(), ==, static_cast<size_t>(k));
  LH_CHECK_OP(repair.size(), >=, 1u);
  LH_CHECK_OP(repair.size(), <=, static_cast<size_t>(ErasureCoder::MaxRepair(k)));
  for (const ByteSpan& symbol : source) LH_CHECK_OP(symbol.size(), ==, symbol_bytes);
  for (const MutableByteSpan& symbol : repair) LH_CHECK_OP(symbol.size(), ==, symbol_bytes);
}

Status CheckDecodeArguments(int k, size_t symbol_bytes, std::span<const MutableByteSpan> source,
                            uint32_t present, std::span<const RepairSymbol> repair) {
  if (!IsBlockSize(k)) return Invalid("blocks of " + std::to_string(k) + " source symbols do not exist");
  if (symbol_bytes == 0 || symbol_bytes % kSymbolAlignment != 0) {
    return Invalid("symbols of " + std::to_string(symbol_bytes) + " bytes: not a multiple of 16");
  }
  if (source.size() != static_cast<size_t>(k)) {
    return Invalid(std::to_string(source.size()) + " source symbols for k = " + std::to_string(k));
  }
  for (const MutableByteSpan& symbol : source) {
    if (symbol.size() != symbol_bytes) {
      return Invalid("source symbol of " + std::to_string(symbol.size()) + " bytes in a block of " +
                     std::to_string(symbol_bytes));
    }
  }
  if (present >> k != 0) return Invalid("more source symbols marked present than the block has");
  if (Status status = CheckRepair(k, symbol_bytes, repair); !status.ok()) return status;
  const size_t have = static_cast<size_t>(std::popcount(present)) + repair.size();
  if (have < static_cast<size_t>(k)) {
    return {StatusCode::kDataLoss,
            std::to_string(have) + " of the " + std::to_string(k) + " symbols needed to rebuild the block"};
  }
  return Status::Ok();
}

}  // namespace longhaul::codec
