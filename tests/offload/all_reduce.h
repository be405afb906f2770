// A message in which every rank of every node takes part, with what must come out of it.
#pragma once

#include <bit>
#include <optional>
#include <type_traits>
#include <vector>

#include "base/random.h"
#include "offload/reduce/reduce.h"
#include "tests/offload/virtual_site.h"

namespace longhaul::offload {

template <typename T>
class AllRanks {
 public:
  // Every rank sends `elements` values that `value` makes of node, rank and position.
  template <typename F>
  AllRanks(VirtualSite& site, size_t elements, F value) : site_(&site), data_(site.nodes()) {
    for (uint8_t node = 0; node < site.nodes(); ++node) {
      data_[node].resize(site.ranks());
      for (uint8_t rank = 0; rank < site.ranks(); ++rank) {
        RankData<T>& d = data_[node][rank];
        d.send.resize(elements);
        d.receive.resize(elements);
        for (size_t i = 0; i < elements; ++i) d.send[i] = value(node, rank, i);
        site.Register(node, rank, d);
      }
    }
    request.type = std::is_same_v<T, float> ? DataType::kFloat32 : DataType::kInt32;
    request.length = elements * sizeof(T);
    request.nodes = site.all_nodes();
  }

  WorkRequest request;

  RankData<T>& at(uint8_t node, uint8_t rank) { return data_[node][rank]; }
  WorkRequest RequestOf(uint8_t node, uint8_t rank, uint64_t wr_id = 1) {
    WorkRequest r = request;
    r.wr_id = wr_id;
    r.send.key = at(node, rank).send_key;
    r.receive.key = at(node, rank).receive_key;
    return r;
  }
  void Post(uint8_t node, uint8_t rank, uint64_t wr_id = 1) {
    site_->Post(node, rank, RequestOf(node, rank, wr_id));
  }
  void PostAll(uint64_t wr_id = 1) {
    for (uint8_t node = 0; node < site_->nodes(); ++node) {
      for (uint8_t rank = 0; rank < site_->ranks(); ++rank) Post(node, rank, wr_id);
    }
  }

  // The plain reference, element by element, in the order that kDeterministic promises: along the seg's ring,
  // ranks by number within a node; in a tree the sums of the children by number, then the root's ranks.
  std::vector<T> Expected() {
    std::vector<T> sum(request.length / sizeof(T));
    const uint32_t seg_elements = site_->engine(0).options().seg_bytes / static_cast<uint32_t>(sizeof(T));
    for (size_t i = 0; i < sum.size(); ++i) {
      const auto sid = static_cast<uint32_t>(i / seg_elements);
      sum[i] = tree_root ? OfTree(i) : OfRing(i, (request.mid + sid) % site_->nodes());
    }
    return sum;
  }
  std::optional<uint8_t> tree_root;

  // Every rank has one completion of that status.
  bool AllEnded(WorkStatus status, uint64_t wr_id = 1) {
    for (uint8_t node = 0; node < site_->nodes(); ++node) {
      for (uint8_t rank = 0; rank < site_->ranks(); ++rank) {
        if (site_->CountOf(node, rank, wr_id) != 1) return false;
        if (site_->CompletionOf(node, rank, wr_id).status != status) return false;
      }
    }
    return true;
  }
  bool AllReceived(const std::vector<T>& expected) {
    for (auto& node : data_) {
      for (auto& rank : node) {
        if (std::memcmp(rank.receive.data(), expected.data(), expected.size() * sizeof(T)) != 0) return false;
      }
    }
    return true;
  }

 private:
  // Integers wrap around.
  static T Plus(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) +
                            static_cast<std::make_unsigned_t<T>>(b));
    } else {
      return a + b;
    }
  }
  T OfRing(size_t i, uint32_t first) {
    T sum = at(static_cast<uint8_t>(first), 0).send[i];
    for (uint32_t k = 0; k < site_->nodes(); ++k) {
      const auto node = static_cast<uint8_t>((first + k) % site_->nodes());
      for (uint8_t rank = k == 0 ? 1 : 0; rank < site_->ranks(); ++rank) {
        sum = Plus(sum, at(node, rank).send[i]);
      }
    }
    return sum;
  }
  T OfTree(size_t i) {
    std::optional<T> sum;
    for (uint8_t node = 0; node < site_->nodes(); ++node) {
      if (node == *tree_root) continue;
      T of_node = at(node, 0).send[i];
      for (uint8_t rank = 1; rank < site_->ranks(); ++rank) of_node = Plus(of_node, at(node, rank).send[i]);
      sum = sum ? Plus(*sum, of_node) : of_node;
    }
    for (uint8_t rank = 0; *tree_root < site_->nodes() && rank < site_->ranks(); ++rank) {
      const T v = at(*tree_root, rank).send[i];
      sum = sum ? Plus(*sum, v) : v;
    }
    return *sum;
  }

  VirtualSite* site_;
  std::vector<std::vector<RankData<T>>> data_;
};

inline int32_t Small(uint8_t node, uint8_t rank, size_t i) {
  return static_cast<int32_t>(1000 * node + 100 * rank + static_cast<int>(i % 97));
}
inline float Fraction(uint8_t node, uint8_t rank, size_t i) {
  return 1.0f / static_cast<float>(3 + 7 * node + rank + static_cast<int>(i % 101));
}

}  // namespace longhaul::offload
