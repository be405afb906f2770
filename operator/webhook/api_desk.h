// Puts the questions of admission to the API server, in a thread of its own: many at once, none waits for
// another.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "operator/api/rest_client.h"
#include "operator/webhook/core/admission.h"

namespace longhaul::kube::webhook {

class ApiDesk {
 public:
  // Called on the desk's thread, once for every question.
  using Reply = std::function<void(const Question& question, const Result<bool>& answer)>;

  // limit: of each question, all attempts together. Errors: kInternal, without a thread.
  static Result<std::unique_ptr<ApiDesk>> Start(std::unique_ptr<api::RestClient> client, Duration limit,
                                                Reply reply);
  // Questions without an answer get none any more.
  ~ApiDesk();
  ApiDesk(const ApiDesk&) = delete;
  ApiDesk& operator=(const ApiDesk&) = delete;

  // Any thread. Admission bounds how many there are.
  void Ask(Question question);

 private:
  ApiDesk(std::unique_ptr<api::RestClient> client, Duration limit, Reply reply)
      : client_(std::move(client)), limit_(limit), reply_(std::move(reply)) {}
  void Run();
  void Begin(Question question);

  std::unique_ptr<api::RestClient> client_;  // the thread's, but for Wake
  const Duration limit_;
  const Reply reply_;
  std::map<api::CallId, Question> asked_;
  std::mutex mutex_;
  std::deque<Question> questions_;  // guarded by mutex_
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// What is asked of the API server, and what its answer comes to.
api::ApiRequest RequestOf(const Question& question, Duration limit);
Result<bool> AnswerOf(const Question& question, const api::ApiResult& result);

}  // namespace longhaul::kube::webhook
