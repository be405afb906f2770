#include "operator/controller/script_desk.h"

#include <utility>

namespace longhaul::kube {

ScriptDesk::~ScriptDesk() {
  for (const auto& [name, entry] : entries_) client_->Cancel(entry.call);
}

ScriptDesk::View ScriptDesk::Look(std::string_view kind, const std::string& name_space,
                                  const std::string& name, const std::string& job, Instant now) {
  std::erase_if(entries_, [&](const auto& one) { return one.second.call == 0 && one.second.until <= now; });
  const std::string what = std::string(kind) + " " + name_space + "/" + name;
  if (!entries_.contains(what) && entries_.size() >= kMost) return {};
  Entry& entry = entries_[what];
  if (entry.view.known) {
    entry.jobs.erase(job);
    return entry.jobs.empty() ? std::move(entries_.extract(what).mapped().view) : entry.view;
  }
  entry.jobs.insert(job);
  if (entry.call != 0) return {};
  api::ApiRequest get;
  get.type = FindKind(kind)->type;
  get.name_space = name_space;
  get.name = name;
  get.time_limit = kWriteLimit;
  const Result<api::CallId> started = client_->Start(get);
  entry.call = started.ok() ? *started : 0;
  entry.until = now;
  return {};
}

std::optional<std::set<std::string>> ScriptDesk::Take(api::RestEvent* event, Instant now) {
  for (auto& [name, entry] : entries_) {
    if (entry.call == 0 || entry.call != event->call) continue;
    entry.call = 0;
    entry.until = now + kLasts;
    entry.view.known = true;
    if (event->result.ok()) {
      entry.view.object = std::move(event->result.body);
    } else if (event->result.code != api::ApiCode::kNotFound) {
      entry.view.trouble = name + " cannot be read: " + event->result.ToString();
    }
    return entry.jobs;
  }
  return std::nullopt;
}

}  // namespace longhaul::kube
