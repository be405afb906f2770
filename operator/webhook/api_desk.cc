#include "operator/webhook/api_desk.h"

#include <system_error>
#include <utility>

namespace longhaul::kube::webhook {

using api::ApiCode;
using api::ApiRequest;
using api::ApiResult;

ApiRequest RequestOf(const Question& question, Duration limit) {
  ApiRequest request;
  if (question.kind == Question::Kind::kPermission) {
    request = api::SubjectAccessReview(question.access);
  } else {
    // Of the API server itself: a copy may be older than the job.
    request.type = {"longhaul.dev", "v1alpha1", "trainingjobs", true};
    request.name_space = question.name_space;
    request.name = question.name;
  }
  request.time_limit = limit;
  return request;
}

Result<bool> AnswerOf(const Question& question, const ApiResult& result) {
  if (question.kind == Question::Kind::kPermission) return api::IsAllowed(result);
  if (result.ok()) return true;
  if (result.code == ApiCode::kNotFound) return false;
  return Status(StatusCode::kUnavailable, result.ToString());
}

Result<std::unique_ptr<ApiDesk>> ApiDesk::Start(std::unique_ptr<api::RestClient> client, Duration limit,
                                                Reply reply) {
  std::unique_ptr<ApiDesk> desk(new ApiDesk(std::move(client), limit, std::move(reply)));
  try {
    desk->thread_ = std::thread([raw = desk.get()] { raw->Run(); });
  } catch (const std::system_error& error) {
    return Status(StatusCode::kInternal, std::string("no thread for the webhooks: ") + error.what());
  }
  return desk;
}

ApiDesk::~ApiDesk() {
  stop_ = true;
  client_->Wake();
  if (thread_.joinable()) thread_.join();
}

void ApiDesk::Ask(Question question) {
  {
    const std::lock_guard lock(mutex_);
    questions_.push_back(std::move(question));
  }
  client_->Wake();
}

void ApiDesk::Begin(Question question) {
  const Result<api::CallId> call = client_->Start(RequestOf(question, limit_));
  if (call.ok()) {
    asked_[*call] = std::move(question);
  } else {
    reply_(question, call.status());
  }
}

void ApiDesk::Run() {
  while (!stop_) {
    std::deque<Question> fresh;
    {
      const std::lock_guard lock(mutex_);
      fresh.swap(questions_);
    }
    for (Question& question : fresh) Begin(std::move(question));
    client_->Poll(std::chrono::seconds(10));
    while (const auto event = client_->Next()) {
      const auto found = asked_.find(event->call);
      if (!event->done || found == asked_.end()) continue;
      const Question question = std::move(found->second);
      asked_.erase(found);
      reply_(question, AnswerOf(question, event->result));
    }
  }
}

}  // namespace longhaul::kube::webhook
