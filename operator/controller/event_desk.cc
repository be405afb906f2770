#include "operator/controller/event_desk.h"

#include <utility>

#include "operator/controller/secrets.h"
#include "operator/resource/timestamps.h"

namespace longhaul::kube {
namespace {

constexpr size_t kMostMessage = 1024;  // the API server's bound

}  // namespace

EventDesk::~EventDesk() {
  for (const auto& [call, open] : open_) client_->Cancel(call);
}

void EventDesk::Say(const Json& job, const Json& event, Instant now, Instant wall) {
  const std::string uid = TextAt(job, {"metadata", "uid"});
  // By its content: an operator that was started anew counts on instead of saying it twice.
  const std::string digest = JobKey("longhaul event", uid + '\n' + Dump(event)).substr(0, 16);
  const std::string name = TextAt(job, {"metadata", "name"}) + "." + digest;
  const auto [known, first] = known_.try_emplace(name);
  if (first) {
    order_.push_back(name);
    if (order_.size() > kMostKept) {
      known_.erase(order_.front());
      order_.pop_front();
    }
  }
  ++known->second.count;
  if (!first && now - known->second.said < kQuiet) {
    ++counters_.merged;
    return;
  }
  known->second.said = now;
  const std::string name_space = TextAt(job, {"metadata", "namespace"});
  const std::string time = TimestampText(wall);
  api::ApiRequest create;
  create.verb = api::Verb::kCreate;
  create.type = FindKind("Event")->type;
  create.name_space = name_space;
  create.time_limit = kWriteLimit;
  create.body = {{"apiVersion", "v1"},
                 {"kind", "Event"},
                 {"metadata", {{"name", name}, {"namespace", name_space}}},
                 {"involvedObject",
                  {{"apiVersion", kApiVersion},
                   {"kind", "TrainingJob"},
                   {"name", TextAt(job, {"metadata", "name"})},
                   {"namespace", name_space},
                   {"uid", uid}}},
                 {"source", {{"component", "longhaul-operator"}}},
                 {"type", TextAt(event, {"type"})},
                 {"reason", TextAt(event, {"reason"})},
                 {"message", TextAt(event, {"message"}).substr(0, kMostMessage)},
                 {"firstTimestamp", time},
                 {"lastTimestamp", time},
                 {"count", known->second.count}};
  // Its own count is not known after a restart: two at least.
  Json again = {{"lastTimestamp", time}, {"count", std::max<int64_t>(2, known->second.count)}};
  Send(create, name, std::move(again));
}

void EventDesk::Send(const api::ApiRequest& request, std::string name, Json again) {
  if (open_.size() >= kMostOpen) {
    ++counters_.dropped;
    return;
  }
  const Result<api::CallId> started = client_->Start(request);
  if (!started.ok()) {
    ++counters_.dropped;
    return;
  }
  open_[*started] = {std::move(name), std::move(again), request.name_space};
}

bool EventDesk::Take(const api::RestEvent& event) {
  const auto found = open_.find(event.call);
  if (found == open_.end()) return false;
  Open open = std::move(found->second);
  open_.erase(found);
  if (event.result.ok()) {
    ++counters_.sent;
  } else if (event.result.code == api::ApiCode::kAlreadyExists && !open.again.is_null()) {
    api::ApiRequest patch;
    patch.verb = api::Verb::kMergePatch;
    patch.type = FindKind("Event")->type;
    patch.name_space = open.name_space;
    patch.name = open.name;
    patch.time_limit = kWriteLimit;
    patch.body = std::move(open.again);
    Send(patch, open.name, nullptr);
  } else {
    ++counters_.dropped;
  }
  return true;
}

}  // namespace longhaul::kube
