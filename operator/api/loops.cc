#include "operator/api/loops.h"

#include <chrono>
#include <utility>

namespace longhaul::kube::api {

Instant SteadyNow() {
  return Instant::FromNanoseconds(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

void InformerLoop::Run(Instant now) {
  for (;;) {
    const Informer::Want want = informer_.Poll(now, chance_.Uniform());
    due_ = want.at;
    switch (want.step) {
      case Informer::Step::kWait:
        return;
      case Informer::Step::kStop:
        client_->Cancel(call_);
        call_ = 0;
        break;
      case Informer::Step::kList:
        Begin(Verb::kList, want, now);
        break;
      case Informer::Step::kWatch:
        Begin(Verb::kWatch, want, now);
        break;
    }
  }
}

void InformerLoop::Begin(Verb verb, const Informer::Want& want, Instant now) {
  ApiRequest request = what_;
  request.verb = verb;
  request.page_limit = want.page_limit;
  request.continue_token = want.continue_token;
  request.resource_version = want.resource_version;
  request.watch_time = want.watch_time;
  watching_ = verb == Verb::kWatch;
  const Result<CallId> started = client_->Start(request);
  call_ = started.ok() ? *started : 0;
  if (started.ok()) return;
  const ApiResult failed = MakeError(ApiCode::kThrottled, started.status().message());
  if (watching_) {
    informer_.OnWatchEnd(failed, now, chance_.Uniform());
  } else {
    informer_.OnList(failed, now, chance_.Uniform());
  }
}

bool InformerLoop::Take(RestEvent* event, Instant now) {
  if (call_ == 0 || event->call != call_) return false;
  const double chance = chance_.Uniform();
  if (!event->done) {
    informer_.OnWatchEvent(std::move(event->watch), now, chance);
    return true;
  }
  call_ = 0;
  if (watching_) {
    informer_.OnWatchEnd(event->result, now, chance);
  } else {
    informer_.OnList(event->result, now, chance);
  }
  return true;
}

void ElectionLoop::Run(Instant now) {
  const auto wall = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  const std::optional<ApiRequest> request = election_.Poll(now, wall.count());
  if (!request.has_value()) return;
  const Result<CallId> started = client_->Start(*request);
  call_ = started.ok() ? *started : 0;
  if (!started.ok())
    election_.OnAnswer(MakeError(ApiCode::kThrottled, started.status().message()), now, chance_.Uniform());
}

bool ElectionLoop::Take(RestEvent* event, Instant now) {
  if (call_ == 0 || event->call != call_) return false;
  call_ = 0;
  election_.OnAnswer(event->result, now, chance_.Uniform());
  return true;
}

ApiResult ListAll(RestClient* client, ApiRequest list, size_t max_items) {
  list.verb = Verb::kList;
  bool restarted = false;
  Json items = Json::array();
  for (;;) {
    ApiResult page = client->Call(list);
    if (page.code == ApiCode::kGone && !list.continue_token.empty() && !restarted) {
      restarted = true;
      items.clear();
      list.continue_token.clear();
      continue;
    }
    if (!page.ok()) return page;
    if (const auto found = page.body.find("items"); found != page.body.end() && found->is_array()) {
      for (Json& item : *found) items.push_back(std::move(item));
    }
    if (items.size() > max_items)
      return MakeError(ApiCode::kTooLarge, "more than " + std::to_string(max_items) +
                                               " objects: narrow the list by a selector or a namespace");
    list.continue_token = TextAt(page.body, {"metadata", "continue"});
    if (list.continue_token.empty()) {
      page.body["items"] = std::move(items);
      return page;
    }
  }
}

}  // namespace longhaul::kube::api
