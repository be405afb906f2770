// A message in which every rank of every node takes part, with what must come out of it.
#pragma once

#include <optional>
#include <type_traits>
#include <vector>

#include "base/random.h"
#include "offload/reduce/reduce.h"
#include "tests/offload/plain_sum.h"
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

  // What all ranks get when none is missing.
  std::vector<T> Expected() {
    std::vector<T> sum(request.length / sizeof(T));
    const PlainSum plain = Plain();
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = plain.template At<T>(i, 0, Sent());
    return sum;
  }
  // Seg by seg the sum of all ranks without some of those that may be missing.
  bool IsSumWithout(uint64_t may_miss, uint8_t node, uint8_t rank) {
    return Plain().template Explains<T>(at(node, rank).receive, may_miss, Sent());
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
  PlainSum Plain() const {
    return {site_->nodes(), site_->ranks(), request.mid,
            site_->engine(0).options().seg_bytes / static_cast<uint32_t>(sizeof(T)), tree_root};
  }
  auto Sent() {
    return [this](uint8_t node, uint8_t rank, size_t i) { return at(node, rank).send[i]; };
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
