#include "operator/api/rest_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace longhaul::kube::api {
namespace {

using Clock = std::chrono::steady_clock;

// All headers of an answer; those of API servers are some 500 bytes.
constexpr size_t kMaxHeaderBytes = size_t{64} << 10;
// Within what curl_multi_poll can count, whatever a caller writes for "for ever".
constexpr Duration kLongestPoll = std::chrono::hours(1);

struct HandleDeleter {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using Handle = std::unique_ptr<CURL, HandleDeleter>;
using Headers = std::unique_ptr<curl_slist, HandleDeleter>;

long Milliseconds(Duration time) {
  return static_cast<long>(
      std::max<int64_t>(1, std::chrono::duration_cast<std::chrono::milliseconds>(time).count()));
}

bool StartsWithIgnoringCase(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() &&
         std::ranges::equal(text.substr(0, prefix.size()), prefix, [](char a, char b) {
           return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
         });
}

// Of a request whose transfer was ended by this side.
enum class Ended : uint8_t { kNo, kTooLarge, kMalformed, kErrorEvent };

ApiCode CodeOf(CURLcode code) {
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return ApiCode::kTimedOut;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_CIPHER:
      return ApiCode::kUntrusted;
    case CURLE_UNSUPPORTED_PROTOCOL:  // HTTP/0.9: any bytes
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_BAD_CONTENT_ENCODING:
    case CURLE_HTTP2:
      return ApiCode::kMalformed;
    default:
      return ApiCode::kUnreachable;
  }
}

bool NeverSent(CURLcode code) {
  return code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_CONNECT ||
         CodeOf(code) == ApiCode::kUntrusted;
}

}  // namespace

class RestClient::Impl {
 public:
  // One request: its attempts, one after the other.
  struct Transfer {
    Transfer(Impl* owner_in, CallId id_in, ApiRequest request_in, EncodedRequest http_in, size_t max_line)
        : owner(owner_in),
          id(id_in),
          request(std::move(request_in)),
          http(std::move(http_in)),
          decoder(max_line) {}

    bool IsWatch() const { return request.verb == Verb::kWatch; }
    bool IsLog() const { return request.verb == Verb::kLog; }
    bool IsStream() const { return IsWatch() || IsLog(); }
    // The answer 200 has begun: events, and no attempt after this one.
    bool IsStreaming() const { return IsStream() && status == 200; }
    bool IsIgnored() const { return request.ignores_answer && status >= 200 && status < 300; }
    // Of what streams: how long it may be silent. A container may say nothing for days.
    bool MayBeSilent() const { return paused || (IsLog() && IsStreaming()); }

    Impl* owner;
    const CallId id;
    const ApiRequest request;
    const EncodedRequest http;
    Clock::time_point deadline;
    Clock::time_point not_before;
    Clock::time_point heard;  // of a watch: the last byte
    uint32_t max_attempts = 1;
    uint32_t attempts = 0;
    bool token_renewed = false;

    // Of the attempt that runs.
    Handle easy;
    Headers headers;
    bool running = false;
    bool paused = false;
    long status = 0;
    size_t header_bytes = 0;
    std::string retry_after;
    std::string body;
    WatchDecoder decoder;
    Ended ended = Ended::kNo;
    ApiResult error_event;
    std::array<char, CURL_ERROR_SIZE> words{};
  };

  Impl(const ClusterAccess& access, const RestOptions& options, Random chance)
      : access_(access),
        options_(options),
        chance_(chance),
        token_(access.token, access.token_file, options.token_age) {}

  ~Impl() {
    for (auto& [id, call] : calls_) Detach(call.get());
    calls_.clear();
    if (multi_ != nullptr) curl_multi_cleanup(multi_);
  }

  Status Prepare();
  Result<CallId> Start(const ApiRequest& request);
  void Cancel(CallId id);
  void Poll(Duration limit);
  // Works once, after waiting for something to do, whatever events there are.
  void WaitAndStep(Clock::time_point end);
  void Step(Clock::time_point now);
  std::optional<RestEvent> Next();
  std::optional<RestEvent> TakeDone(CallId id);
  void Wake() {
    woken_.store(true);
    curl_multi_wakeup(multi_);
  }

  ClusterAccess access_;
  RestOptions options_;
  RestCounters counters_;
  std::map<CallId, std::unique_ptr<Transfer>> calls_;

 private:
  void Attempt(Transfer* call, Clock::time_point now);
  bool Configure(Transfer* call, Clock::time_point now, const std::string& token);
  void Detach(Transfer* call);
  void OnTransferDone(Transfer* call, CURLcode code);
  ApiResult ResultOf(Transfer* call, CURLcode code) const;
  void Conclude(Transfer* call, ApiResult result);
  void Finish(Transfer* call, ApiResult result);
  void CheckLimits(Clock::time_point now);
  void Resume();
  Clock::time_point NextTime(Clock::time_point end) const;
  size_t TakeStreamBytes(Transfer* call, std::string_view bytes);
  size_t OnBody(Transfer* call, std::string_view bytes);
  size_t OnHeader(Transfer* call, std::string_view line);

  static size_t BodyCallback(char* data, size_t size, size_t count, void* call);
  static size_t HeaderCallback(char* data, size_t size, size_t count, void* call);

  CURLM* multi_ = nullptr;
  Random chance_;
  Token token_;
  CallId next_id_ = 1;
  std::deque<RestEvent> events_;
  size_t watch_events_ = 0;  // of events_, pieces of logs as well
  bool any_paused_ = false;
  std::atomic<bool> woken_{false};
};

Status RestClient::Impl::Prepare() {
  static const CURLcode global = curl_global_init(CURL_GLOBAL_DEFAULT);
  multi_ = global == CURLE_OK ? curl_multi_init() : nullptr;
  if (multi_ == nullptr) return Status(StatusCode::kInternal, "libcurl does not start");
  // Idle connections that are kept.
  curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, 16L);
  return Status::Ok();
}

Result<CallId> RestClient::Impl::Start(const ApiRequest& request) {
  Result<EncodedRequest> http = Encode(request);
  if (!http.ok()) return http.status();
  // Answers that are not fetched count as well.
  const size_t open = calls_.size() + events_.size() - watch_events_;
  if (open >= options_.max_calls) {
    ++counters_.refused;
    return Status(StatusCode::kResourceExhausted,
                  std::to_string(open) + " requests are under way already: wait until one is done");
  }
  ++counters_.requests;
  const CallId id = next_id_++;
  auto call = std::make_unique<Transfer>(this, id, request, std::move(*http), options_.max_line_bytes);
  const Clock::time_point now = Clock::now();
  call->deadline = now + (request.time_limit > Duration(0) ? request.time_limit : options_.request_limit);
  call->not_before = now;
  call->max_attempts = request.max_attempts > 0 ? request.max_attempts : options_.retry.attempts;
  calls_[id] = std::move(call);
  return id;
}

void RestClient::Impl::Cancel(CallId id) {
  if (const auto found = calls_.find(id); found != calls_.end()) {
    Detach(found->second.get());
    calls_.erase(found);
  }
  std::erase_if(events_, [&](const RestEvent& event) {
    if (event.call != id) return false;
    if (!event.done) --watch_events_;
    return true;
  });
}

void RestClient::Impl::Attempt(Transfer* call, Clock::time_point now) {
  ++counters_.attempts;
  if (call->attempts++ > 0) ++counters_.retries;
  call->status = 0;
  call->header_bytes = 0;
  call->retry_after.clear();
  call->body.clear();
  call->ended = Ended::kNo;
  call->words.fill('\0');
  call->heard = now;
  const Result<std::string> token = token_.Get(now);
  counters_.tokens_read = token_.reads();
  if (!token.ok()) return Conclude(call, MakeError(ApiCode::kUnauthorized, token.status().message()));
  if (!Configure(call, now, *token) || curl_multi_add_handle(multi_, call->easy.get()) != CURLM_OK)
    return Finish(call, MakeError(ApiCode::kUnreachable, "libcurl does not take the request"));
  call->running = true;
}

bool RestClient::Impl::Configure(Transfer* call, Clock::time_point now, const std::string& token) {
  call->easy.reset(curl_easy_init());
  CURL* easy = call->easy.get();
  if (easy == nullptr) return false;
  bool ok = true;
  const auto set = [&](CURLoption option, auto value) {
    ok = curl_easy_setopt(easy, option, value) == CURLE_OK && ok;
  };
  set(CURLOPT_URL, (access_.server + call->http.target).c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_PROXY, "");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_QUICK_EXIT, 1L);  // else what is cancelled waits for its name to be resolved
  // On a connection that had answered before and dies now libcurl sends again by itself, whatever the verb.
  if (!IsRepeatable(call->request.verb)) set(CURLOPT_FRESH_CONNECT, 1L);
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_USERAGENT, options_.user_agent.c_str());
  set(CURLOPT_CUSTOMREQUEST, call->http.method.c_str());
  set(CURLOPT_ERRORBUFFER, call->words.data());
  set(CURLOPT_PRIVATE, static_cast<void*>(call));
  set(CURLOPT_WRITEFUNCTION, &BodyCallback);
  set(CURLOPT_WRITEDATA, static_cast<void*>(call));
  set(CURLOPT_HEADERFUNCTION, &HeaderCallback);
  set(CURLOPT_HEADERDATA, static_cast<void*>(call));
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_TCP_KEEPIDLE, 30L);
  set(CURLOPT_TCP_KEEPINTVL, 15L);
  set(CURLOPT_CONNECTTIMEOUT_MS, Milliseconds(options_.connect_limit));
  // A watch's first byte is bounded by CheckLimits.
  if (!call->IsStream())
    set(CURLOPT_TIMEOUT_MS, Milliseconds(std::min<Duration>(options_.attempt_limit, call->deadline - now)));

  set(CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
  set(CURLOPT_SSL_VERIFYPEER, 1L);
  set(CURLOPT_SSL_VERIFYHOST, 2L);
  const auto blob = [&](CURLoption option, const std::string& pem) {
    curl_blob bytes{const_cast<char*>(pem.data()), pem.size(), CURL_BLOB_COPY};
    set(option, &bytes);
  };
  if (!access_.ca.empty()) {
    blob(CURLOPT_CAINFO_BLOB, access_.ca);
    set(CURLOPT_CAPATH, static_cast<char*>(nullptr));  // else the system's authorities count as well
  }
  if (!access_.client_certificate.empty()) {
    blob(CURLOPT_SSLCERT_BLOB, access_.client_certificate);
    blob(CURLOPT_SSLKEY_BLOB, access_.client_key);
  }

  call->headers.reset();
  const auto header = [&](const std::string& line) {
    curl_slist* longer = curl_slist_append(call->headers.get(), line.c_str());
    if (longer == nullptr) {
      ok = false;
      return;
    }
    static_cast<void>(call->headers.release());
    call->headers.reset(longer);
  };
  header(call->IsLog() ? "Accept: application/json, */*" : "Accept: application/json");
  header("Expect:");
  if (!token.empty()) header("Authorization: Bearer " + token);
  if (!call->http.content_type.empty()) {
    header("Content-Type: " + call->http.content_type);
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call->http.body.size()));
    set(CURLOPT_POSTFIELDS, call->http.body.c_str());
  }
  set(CURLOPT_HTTPHEADER, call->headers.get());
  return ok;
}

void RestClient::Impl::Detach(Transfer* call) {
  if (call->running) curl_multi_remove_handle(multi_, call->easy.get());
  call->running = false;
  call->paused = false;
  call->easy.reset();
}

void RestClient::Impl::Poll(Duration limit) {
  const Clock::time_point end = Clock::now() + std::min<Duration>(limit, kLongestPoll);
  Step(Clock::now());
  while (!woken_.exchange(false) && events_.empty() && Clock::now() < end) WaitAndStep(end);
}

void RestClient::Impl::WaitAndStep(Clock::time_point end) {
  const Duration wait = std::max<Duration>(NextTime(end) - Clock::now(), Duration(0));
  // Rounded up: a wait of zero would turn until its time has come.
  const int64_t milliseconds = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
  curl_multi_poll(multi_, nullptr, 0, static_cast<int>(milliseconds), nullptr);
  Step(Clock::now());
}

void RestClient::Impl::Step(Clock::time_point now) {
  std::vector<Transfer*> due;
  for (auto& [id, call] : calls_) {
    if (!call->running && now >= call->not_before) due.push_back(call.get());
  }
  for (Transfer* call : due) Attempt(call, now);
  Resume();  // what was cancelled may have made room
  int running = 0;
  curl_multi_perform(multi_, &running);
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    void* call = nullptr;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &call);
    OnTransferDone(static_cast<Transfer*>(call), message->data.result);
  }
  CheckLimits(now);
}

void RestClient::Impl::OnTransferDone(Transfer* call, CURLcode code) {
  ApiResult result = ResultOf(call, code);
  const bool streaming = call->IsStreaming();
  Detach(call);
  if (streaming) return Finish(call, std::move(result));
  Conclude(call, std::move(result));
}

ApiResult RestClient::Impl::ResultOf(Transfer* call, CURLcode code) const {
  ApiResult result;
  const int http = static_cast<int>(call->status);
  if (call->ended == Ended::kErrorEvent) return call->error_event;
  if (call->ended == Ended::kTooLarge) {
    const Status& why = call->decoder.status();
    result =
        MakeError(ApiCode::kTooLarge, why.ok() ? "the answer is larger than its bound of " +
                                                     std::to_string(options_.max_response_bytes) + " bytes"
                                               : why.message());
  } else if (call->ended == Ended::kMalformed) {
    result = MakeError(ApiCode::kMalformed, call->decoder.status().message());
  } else if (code != CURLE_OK) {
    const char* words = call->words[0] != '\0' ? call->words.data() : curl_easy_strerror(code);
    result = MakeError(CodeOf(code), access_.server + ": " + words);
    result.not_sent = NeverSent(code);
  } else if (call->IsStreaming()) {
    result.code = ApiCode::kOk;
    if (call->decoder.InsideLine())
      result = MakeError(ApiCode::kUnreachable, "the watch was cut inside a line");
  } else if (call->IsIgnored()) {
    result.code = ApiCode::kOk;
  } else {
    return Classify(http, call->body, call->retry_after);
  }
  result.http = http;
  return result;
}

// A result that may lead to another attempt.
void RestClient::Impl::Conclude(Transfer* call, ApiResult result) {
  const Clock::time_point now = Clock::now();
  if (result.code == ApiCode::kThrottled) ++counters_.throttled;
  if (result.code == ApiCode::kUnauthorized && result.http == 401 && !call->token_renewed &&
      token_.IsRenewable() && now < call->deadline) {
    call->token_renewed = true;
    token_.Expire();
    call->not_before = now;
    return;
  }
  RetryBounds bounds = options_.retry;
  bounds.attempts = call->max_attempts;
  const std::optional<Duration> wait =
      NextAttempt(result, call->request.verb, call->attempts, bounds, chance_.Uniform());
  if (!wait.has_value() || now + *wait >= call->deadline) return Finish(call, std::move(result));
  call->not_before = now + *wait;
}

void RestClient::Impl::Finish(Transfer* call, ApiResult result) {
  if (result.code == ApiCode::kTimedOut) ++counters_.timed_out;
  if (result.code == ApiCode::kTooLarge) ++counters_.too_large;
  if (result.code == ApiCode::kMalformed) ++counters_.malformed;
  RestEvent event;
  event.call = call->id;
  event.done = true;
  event.result = std::move(result);
  event.result.attempts = call->attempts;
  events_.push_back(std::move(event));
  Detach(call);
  calls_.erase(call->id);
}

void RestClient::Impl::CheckLimits(Clock::time_point now) {
  std::vector<std::pair<Transfer*, std::string>> over;
  for (auto& [id, call] : calls_) {
    if (!call->IsStream() || !call->running) continue;
    if (call->IsStreaming()) {
      if (!call->MayBeSilent() && now - call->heard >= options_.watch_silence)
        over.emplace_back(call.get(), "the watch is silent");
    } else if (now - call->heard >= options_.attempt_limit || now >= call->deadline) {
      over.emplace_back(call.get(), call->IsLog() ? "the log does not begin" : "the watch does not begin");
    }
  }
  for (const auto& [call, why] : over) {
    const bool streaming = call->IsStreaming();
    Detach(call);
    ApiResult result = MakeError(ApiCode::kTimedOut, access_.server + ": " + why);
    if (streaming) {
      Finish(call, std::move(result));
    } else {
      Conclude(call, std::move(result));
    }
  }
}

Clock::time_point RestClient::Impl::NextTime(Clock::time_point end) const {
  Clock::time_point next = end;
  for (const auto& [id, call] : calls_) {
    if (!call->running) {
      next = std::min(next, call->not_before);
    } else if (call->IsStream() && !call->MayBeSilent()) {
      next = std::min<Clock::time_point>(
          next, call->heard + (call->IsStreaming() ? options_.watch_silence : options_.attempt_limit));
      if (!call->IsStreaming()) next = std::min(next, call->deadline);
    }
  }
  return next;
}

std::optional<RestEvent> RestClient::Impl::Next() {
  if (events_.empty()) return std::nullopt;
  RestEvent event = std::move(events_.front());
  events_.pop_front();
  if (!event.done) --watch_events_;
  Resume();
  return event;
}

void RestClient::Impl::Resume() {
  if (!any_paused_ || watch_events_ > options_.max_events / 2) return;
  any_paused_ = false;
  for (auto& [id, call] : calls_) {
    if (!call->paused) continue;
    call->paused = false;
    call->heard = Clock::now();
    curl_easy_pause(call->easy.get(), CURLPAUSE_CONT);
  }
}

std::optional<RestEvent> RestClient::Impl::TakeDone(CallId id) {
  const auto found =
      std::ranges::find_if(events_, [id](const RestEvent& event) { return event.call == id && event.done; });
  if (found == events_.end()) return std::nullopt;
  RestEvent event = std::move(*found);
  events_.erase(found);
  return event;
}

size_t RestClient::Impl::BodyCallback(char* data, size_t size, size_t count, void* call) {
  auto* to = static_cast<Transfer*>(call);
  return to->owner->OnBody(to, {data, size * count});
}

size_t RestClient::Impl::HeaderCallback(char* data, size_t size, size_t count, void* call) {
  auto* to = static_cast<Transfer*>(call);
  return to->owner->OnHeader(to, {data, size * count});
}

// 0, or less than there is: the transfer ends.
size_t RestClient::Impl::OnBody(Transfer* call, std::string_view bytes) {
  if (call->IsStreaming()) return TakeStreamBytes(call, bytes);
  if (call->IsIgnored()) return bytes.size();
  // One object is larger as JSON than as an API server keeps it, up to six times.
  const bool one = call->request.verb == Verb::kList && call->request.page_limit == 1;
  const size_t most = one ? std::max(kMostOfOne, options_.max_response_bytes) : options_.max_response_bytes;
  if (call->body.size() + bytes.size() > most) {
    call->ended = Ended::kTooLarge;
    return 0;
  }
  call->body += bytes;
  return bytes.size();
}

size_t RestClient::Impl::TakeStreamBytes(Transfer* call, std::string_view bytes) {
  if (watch_events_ >= options_.max_events) {
    ++counters_.pauses;
    call->paused = any_paused_ = true;
    return CURL_WRITEFUNC_PAUSE;
  }
  call->heard = Clock::now();
  if (call->IsLog()) {
    ++watch_events_;
    RestEvent out;
    out.call = call->id;
    out.log = bytes;
    events_.push_back(std::move(out));
    return bytes.size();
  }
  Status taken = call->decoder.Take(bytes);
  while (std::optional<WatchEvent> event = call->decoder.Next()) {
    if (event->type == WatchEvent::Type::kError) {
      const Json* code = ValueAt(event->object, {"code"});
      const bool known = code != nullptr && code->is_number_integer();
      call->error_event = ClassifyStatus(known ? code->get<int>() : 500, event->object);
      call->ended = Ended::kErrorEvent;
      return 0;
    }
    ++counters_.watch_events;
    ++watch_events_;
    RestEvent out;
    out.call = call->id;
    out.watch = std::move(*event);
    events_.push_back(std::move(out));
  }
  taken = call->decoder.status();
  if (taken.ok()) return bytes.size();
  call->ended = taken.code() == StatusCode::kResourceExhausted ? Ended::kTooLarge : Ended::kMalformed;
  return 0;
}

size_t RestClient::Impl::OnHeader(Transfer* call, std::string_view line) {
  call->header_bytes += line.size();
  if (call->header_bytes > kMaxHeaderBytes) {
    call->ended = Ended::kTooLarge;
    return 0;
  }
  if (StartsWithIgnoringCase(line, "http/")) call->retry_after.clear();
  constexpr std::string_view kRetryAfter = "retry-after:";
  if (StartsWithIgnoringCase(line, kRetryAfter)) {
    const size_t begin = line.find_first_not_of(" \t", kRetryAfter.size());
    const size_t end = line.find_last_not_of(" \t\r\n");
    if (begin != std::string_view::npos && end >= begin)
      call->retry_after = line.substr(begin, end - begin + 1);
  }
  curl_easy_getinfo(call->easy.get(), CURLINFO_RESPONSE_CODE, &call->status);
  return line.size();
}

Result<std::unique_ptr<RestClient>> RestClient::Make(const ClusterAccess& access, const RestOptions& options,
                                                     Random chance) {
  if (const Status checked = CheckAccess(access); !checked.ok()) return checked;
  auto impl = std::make_unique<Impl>(access, options, chance);
  while (impl->access_.server.ends_with('/')) impl->access_.server.pop_back();
  if (const Status prepared = impl->Prepare(); !prepared.ok()) return prepared;
  return std::unique_ptr<RestClient>(new RestClient(std::move(impl)));
}

RestClient::RestClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RestClient::~RestClient() = default;

Result<CallId> RestClient::Start(const ApiRequest& request) { return impl_->Start(request); }
void RestClient::Cancel(CallId call) { impl_->Cancel(call); }
void RestClient::Poll(Duration limit) { impl_->Poll(limit); }
std::optional<RestEvent> RestClient::Next() { return impl_->Next(); }
void RestClient::Wake() { impl_->Wake(); }
size_t RestClient::calls() const { return impl_->calls_.size(); }
const RestCounters& RestClient::counters() const { return impl_->counters_; }
const ClusterAccess& RestClient::access() const { return impl_->access_; }

ApiResult RestClient::Call(const ApiRequest& request) {
  if (request.verb == Verb::kWatch || request.verb == Verb::kLog)
    return MakeError(ApiCode::kInvalid, "a watch or log has many answers: Start it");
  const Result<CallId> started = impl_->Start(request);
  if (!started.ok()) {
    return MakeError(
        started.status().code() == StatusCode::kInvalidArgument ? ApiCode::kInvalid : ApiCode::kThrottled,
        started.status().message());
  }
  impl_->Step(Clock::now());
  for (;;) {
    if (std::optional<RestEvent> event = impl_->TakeDone(*started)) return std::move(event->result);
    impl_->WaitAndStep(Clock::now() + impl_->options_.attempt_limit);
  }
}

}  // namespace longhaul::kube::api
