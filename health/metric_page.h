// Counters as Prometheus scrapes them: the text format 0.0.4, written by prometheus-cpp. Names follow from
// the tables (longhaul/stats.h):
//
//   longhaul_<part>_<counter>[_seconds | _bytes | _bytes_per_second][_total]
//
// _total: it only grows. A counter whose value is a word is 1, with the word as its label `state`.
#pragma once

#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/counters.h"
#include "longhaul/stats.h"

namespace longhaul::health {

class MetricPage {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string>>;
  struct Sample {
    double value = 0;
    Labels labels = {};
  };
  // One of a table's owners: a member, a node.
  template <typename S>
  struct Of {
    const S* values = nullptr;
    Labels labels = {};
  };

  // Every counter of the table, each of all its owners. A part and a name come once in a page.
  template <typename S>
  void Add(std::string_view part, std::span<const Counter<S>> table, const std::vector<Of<S>>& owners) {
    for (const Counter<S>& counter : table) {
      std::vector<Sample> samples;
      for (const Of<S>& of : owners) AddSample(counter, of, &samples);
      AddFamily(NameOf(part, counter), counter.help, IsCount(counter), samples);
    }
  }
  // name: whole, with its unit. Nothing without samples. Values of labels may come from anywhere.
  void AddFamily(const std::string& name, std::string_view help, bool is_count,
                 const std::vector<Sample>& samples);

  std::string Text() const { return out_.str(); }

  template <typename S>
  static std::string NameOf(std::string_view part, const Counter<S>& counter) {
    std::string name = "longhaul_" + std::string(part) + "_" + std::string(counter.name);
    if (std::holds_alternative<Duration S::*>(counter.field)) name += "_seconds";
    if (std::holds_alternative<Bandwidth S::*>(counter.field)) name += "_bytes_per_second";
    const bool bytes = std::holds_alternative<ByteCount S::*>(counter.field);
    if (bytes && counter.name.find("bytes") == std::string_view::npos) name += "_bytes";
    return IsCount(counter) ? name + "_total" : name;
  }

 private:
  template <typename S>
  static void AddSample(const Counter<S>& counter, const Of<S>& of, std::vector<Sample>* samples) {
    std::visit(
        [&]<typename T>(T S::*member) {
          const T& value = of.values->*member;
          Sample sample{0, of.labels};
          if constexpr (std::is_convertible_v<T, std::string_view>) {
            if (value.empty()) return;
            sample.value = 1;
            sample.labels.emplace_back("state", value);
          } else if constexpr (std::is_same_v<T, ByteCount>) {
            sample.value = static_cast<double>(value.value());
          } else if constexpr (std::is_same_v<T, Bandwidth>) {
            sample.value = value.mbps() * 125'000;
          } else if constexpr (std::is_same_v<T, Duration>) {
            sample.value = std::chrono::duration<double>(value).count();
          } else {
            sample.value = static_cast<double>(value);
          }
          samples->push_back(std::move(sample));
        },
        counter.field);
  }

  std::ostringstream out_;
};

}  // namespace longhaul::health
