// A ring between one writer and one reader that do not trust each other: entries in memory that both can
// write. Each side keeps its own cursor and the ring's size in private memory and shows the cursor to the
// other. What the other shows is read once and checked; an entry is copied out once, word by word, before
// anything looks at it. So no index, length or loop bound of the other side is ever used.
//
// When not: several writers or readers, entries whose size varies, or sides that trust each other (a lock
// and a deque do).
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace longhaul::offload {

// Alone in its cache line: its neighbour is written by the other side.
struct alignas(64) SharedWord {
  std::atomic<uint32_t> value{0};
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

template <typename T>
struct alignas(64) SharedEntry {
  static_assert(std::has_unique_object_representations_v<T> && sizeof(T) % 64 == 0);
  static constexpr size_t kWords = sizeof(T) / sizeof(uint64_t);

  T Read() const {
    std::array<uint64_t, kWords> copy;
    for (size_t i = 0; i < kWords; ++i) copy[i] = words[i].load(std::memory_order_relaxed);
    return std::bit_cast<T>(copy);
  }
  void Write(const T& value) {
    const auto copy = std::bit_cast<std::array<uint64_t, kWords>>(value);
    for (size_t i = 0; i < kWords; ++i) words[i].store(copy[i], std::memory_order_relaxed);
  }

  std::array<std::atomic<uint64_t>, kWords> words;
};

template <typename T>
class RingWriter {
 public:
  RingWriter() = default;
  // size: a power of two.
  RingWriter(SharedWord* tail, const SharedWord* head, SharedEntry<T>* entries, uint32_t size)
      : tail_word_(tail), head_word_(head), entries_(entries), size_(size) {}

  // Entries that may be written now; none: what the reader shows cannot be.
  std::optional<uint32_t> Free() {
    if (tail_ - head_ < size_) return size_ - (tail_ - head_);
    const uint32_t head = head_word_->value.load(std::memory_order_acquire);
    if (tail_ - head > size_) return std::nullopt;
    head_ = head;
    return size_ - (tail_ - head_);
  }
  // REQUIRES: one is free.
  void Write(const T& value) { entries_[tail_++ & (size_ - 1)].Write(value); }
  void Publish() { tail_word_->value.store(tail_, std::memory_order_release); }
  // Whether the reader shows that it has taken everything.
  bool Drained() const { return head_word_->value.load(std::memory_order_acquire) == tail_; }

 private:
  SharedWord* tail_word_ = nullptr;
  const SharedWord* head_word_ = nullptr;
  SharedEntry<T>* entries_ = nullptr;
  uint32_t size_ = 0;
  uint32_t tail_ = 0;
  uint32_t head_ = 0;  // at least so far has the reader come
};

template <typename T>
class RingReader {
 public:
  RingReader() = default;
  RingReader(const SharedWord* tail, SharedWord* head, const SharedEntry<T>* entries, uint32_t size)
      : tail_word_(tail), head_word_(head), entries_(entries), size_(size) {}

  // Entries that may be read now, at most the ring's size; none: what the writer shows cannot be.
  std::optional<uint32_t> Available() const {
    const uint32_t count = tail_word_->value.load(std::memory_order_acquire) - head_;
    return count <= size_ ? std::optional(count) : std::nullopt;
  }
  // REQUIRES: one is available.
  T Read() { return entries_[head_++ & (size_ - 1)].Read(); }
  void Release() { head_word_->value.store(head_, std::memory_order_release); }

 private:
  const SharedWord* tail_word_ = nullptr;
  SharedWord* head_word_ = nullptr;
  const SharedEntry<T>* entries_ = nullptr;
  uint32_t size_ = 0;
  uint32_t head_ = 0;
};

}  // namespace longhaul::offload
