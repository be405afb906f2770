#include "codec/fragment_headers.h"

#include <mutex>

namespace longhaul::codec {

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

}  // namespace longhaul::codec
