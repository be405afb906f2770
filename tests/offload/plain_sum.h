// The plain reference of an all-reduce, element by element, in the order that kDeterministic promises: along
// the seg's ring, ranks by number within a node; in a tree the sums of the children by number, then the
// root's ranks.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

#include "base/check.h"

namespace longhaul::offload {

struct PlainSum {
  uint8_t nodes = 1;
  uint8_t ranks = 1;  // per node
  uint32_t mid = 0;
  uint32_t seg_elements = 1;
  std::optional<uint8_t> tree_root = {};  // a number beyond the nodes: an aggregator

  uint64_t BitOfRank(uint8_t node, uint8_t rank) const { return uint64_t{1} << (node * ranks + rank); }
  uint64_t RanksOf(uint8_t node) const { return ((uint64_t{1} << ranks) - 1) << node * ranks; }

  // value(node, rank, i) of all ranks without the missing ones, which are not all.
  template <typename T, typename F>
  T At(size_t i, uint64_t missing, const F& value) const {
    std::optional<T> sum;
    const auto add = [&sum](T v) { sum = sum ? Plus(*sum, v) : v; };
    const auto first = static_cast<uint32_t>((mid + i / seg_elements) % nodes);
    for (uint32_t k = 0; k <= nodes; ++k) {
      // Of a tree the root comes last.
      const auto node = static_cast<uint8_t>(!tree_root ? (first + k) % nodes : k < nodes ? k : *tree_root);
      if (node >= nodes || (!tree_root && k == nodes) || (tree_root && k < nodes && k == *tree_root))
        continue;
      std::optional<T> of_child;
      const bool child = tree_root && node != *tree_root;
      for (uint8_t rank = 0; rank < ranks; ++rank) {
        if ((missing & BitOfRank(node, rank)) != 0) continue;
        const T v = value(node, rank, i);
        if (child) {
          of_child = of_child ? Plus(*of_child, v) : v;
        } else {
          add(v);
        }
      }
      if (of_child) add(*of_child);
    }
    LH_CHECK(sum.has_value());
    return *sum;
  }

  // Whether every seg of the result is, bit by bit, the sum of all ranks without some of `may_miss`.
  template <typename T, typename F>
  bool Explains(std::span<const T> result, uint64_t may_miss, const F& value) const {
    for (size_t from = 0; from < result.size(); from += seg_elements) {
      const std::span<const T> seg =
          result.subspan(from, std::min<size_t>(seg_elements, result.size() - from));
      uint64_t missing = 0;  // every subset of may_miss, beginning with none
      while (!IsSum(seg, from, missing, value)) {
        missing = (missing - may_miss) & may_miss;
        if (missing == 0) return false;
      }
    }
    return true;
  }

 private:
  template <typename T, typename F>
  bool IsSum(std::span<const T> seg, size_t from, uint64_t missing, const F& value) const {
    const uint64_t all = nodes * ranks == 64 ? ~uint64_t{0} : (uint64_t{1} << nodes * ranks) - 1;
    if (missing == all) return false;
    for (size_t i = 0; i < seg.size(); ++i) {
      const T expected = At<T>(from + i, missing, value);
      if (std::memcmp(&expected, &seg[i], sizeof(T)) != 0) return false;
    }
    return true;
  }
  // Integers wrap around.
  template <typename T>
  static T Plus(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                            static_cast<std::make_unsigned_t<T>>(b));
    } else {
      return a + b;
    }
  }
};

}  // namespace longhaul::offload
