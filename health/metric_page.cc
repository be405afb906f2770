#include "health/metric_page.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "proto/utf8.h"

namespace longhaul::health {
namespace {

// Of a label: a site's or a worker's name is shorter.
constexpr size_t kMaxValueBytes = 256;

}  // namespace

void MetricPage::AddFamily(const std::string& name, std::string_view help, bool is_count,
                           const std::vector<Sample>& samples) {
  if (samples.empty()) return;
  // One family after the other, so that a page of 1,024 members is never in memory as metrics.
  std::vector<prometheus::MetricFamily> families(1);
  prometheus::MetricFamily& family = families.front();
  family.name = name;
  family.help = help;
  family.type = is_count ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
  family.metric.reserve(samples.size());
  for (const Sample& sample : samples) {
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    (is_count ? metric.counter.value : metric.gauge.value) = sample.value;
    for (const auto& [label, value] : sample.labels) {
      // A scrape with a byte that is no UTF-8 fails as a whole.
      metric.label.push_back({std::string(label), wire::Printable(value, kMaxValueBytes)});
    }
  }
  prometheus::TextSerializer().Serialize(out_, families);
}

}  // namespace longhaul::health
