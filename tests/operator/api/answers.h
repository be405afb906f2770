// Answers of an API server as the cores get them.
#pragma once

#include <string>
#include <vector>

#include "base/instant.h"
#include "operator/api/core/api_result.h"
#include "operator/api/core/watch_decoder.h"

namespace longhaul::kube::api {

constexpr Instant At(double seconds) { return Instant::FromNanoseconds(static_cast<int64_t>(seconds * 1e9)); }
constexpr double SecondsOf(Duration time) { return static_cast<double>(time.count()) * 1e-9; }

inline Json Pod(const std::string& name, const std::string& version, const std::string& phase = "Pending") {
  return {{"metadata", {{"name", name}, {"namespace", "ns"}, {"resourceVersion", version}}},
          {"status", {{"phase", phase}}}};
}

inline ApiResult Page(const std::vector<Json>& items, const std::string& version,
                      const std::string& next = "") {
  ApiResult result;
  result.code = ApiCode::kOk;
  result.http = 200;
  result.body = {{"kind", "PodList"}, {"metadata", {{"resourceVersion", version}}}, {"items", items}};
  if (!next.empty()) result.body["metadata"]["continue"] = next;
  return result;
}

inline ApiResult Ok() {
  ApiResult result;
  result.code = ApiCode::kOk;
  result.http = 200;
  return result;
}

inline WatchEvent Event(WatchEvent::Type type, Json object) {
  WatchEvent event;
  event.type = type;
  event.resource_version = TextAt(object, {"metadata", "resourceVersion"});
  event.object = std::move(object);
  return event;
}

}  // namespace longhaul::kube::api
