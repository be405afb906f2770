#include "operator/api/core/api_result.h"

#include <algorithm>
#include <charconv>

namespace longhaul::kube::api {
namespace {

// Of a body that is no Status: enough to recognise a proxy's page.
constexpr size_t kQuotedBytes = 120;

bool IsShallow(std::string_view text) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxJsonDepth) return false;
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return true;
}

ApiCode CodeOf(int http, std::string_view reason, bool asks_to_wait) {
  switch (http) {
    case 401:
      return ApiCode::kUnauthorized;
    case 403:
      return ApiCode::kForbidden;
    case 404:
      return ApiCode::kNotFound;
    case 409:
      return reason == "AlreadyExists" ? ApiCode::kAlreadyExists : ApiCode::kConflict;
    case 410:
      return ApiCode::kGone;
    case 429:
      return ApiCode::kThrottled;
    case 503:
      return asks_to_wait ? ApiCode::kThrottled : ApiCode::kServerError;
    default:
      break;
  }
  if (http >= 400 && http < 500) return ApiCode::kInvalid;
  return http >= 500 && http < 600 ? ApiCode::kServerError : ApiCode::kMalformed;
}

std::string Printable(std::string_view text) {
  std::string shown(text.substr(0, kQuotedBytes));
  std::ranges::replace_if(
      shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

}  // namespace

std::string_view ApiCodeName(ApiCode code) {
  static constexpr std::string_view kNames[] = {"Ok",        "NotFound",    "AlreadyExists", "Conflict",
                                                "Gone",      "Invalid",     "Unauthorized",  "Forbidden",
                                                "Throttled", "ServerError", "Unreachable",   "Untrusted",
                                                "TimedOut",  "TooLarge",    "Malformed"};
  return static_cast<size_t>(code) < std::size(kNames) ? kNames[static_cast<size_t>(code)] : "Unknown";
}

std::string ApiResult::ToString() const {
  std::string text(ApiCodeName(code));
  if (http != 0) text += " (" + std::to_string(http) + ")";
  return message.empty() ? text : text + ": " + message;
}

ApiResult MakeError(ApiCode code, std::string message) {
  ApiResult result;
  result.code = code;
  result.message = std::move(message);
  return result;
}

std::optional<Json> ParseJson(std::string_view text) {
  if (!IsShallow(text)) return std::nullopt;
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) return std::nullopt;
  return value;
}

Duration ParseRetryAfter(std::string_view header) {
  if (header.empty()) return Duration(0);
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(header.data(), header.data() + header.size(), seconds);
  if (error == std::errc::result_out_of_range) return kMaxRetryAfter;
  if (error != std::errc() || end != header.data() + header.size() || seconds < 0)
    return std::chrono::seconds(1);
  return std::chrono::seconds(
      std::min<int64_t>(seconds, std::chrono::duration_cast<std::chrono::seconds>(kMaxRetryAfter).count()));
}

ApiResult Classify(int http, std::string_view body, std::string_view retry_after) {
  std::optional<Json> parsed = ParseJson(body);
  if (http >= 200 && http < 300) {
    ApiResult result;
    result.http = http;
    if (parsed.has_value() && parsed->is_object()) {
      result.code = ApiCode::kOk;
      result.body = std::move(*parsed);
      return result;
    }
    result.code = ApiCode::kMalformed;
    result.message =
        "the answer is no JSON object: \"" + Printable(body) + "\"; is this the address of an API server?";
    return result;
  }
  ApiResult result = ClassifyStatus(http, parsed.has_value() ? *parsed : Json());
  result.retry_after = std::max(result.retry_after, ParseRetryAfter(retry_after));
  if (http == 503 && !retry_after.empty()) result.code = ApiCode::kThrottled;
  if (result.message.empty()) result.message = Printable(body);
  if (http >= 300 && http < 400)
    result.message = "the server redirects, which is not followed: write its own address";
  return result;
}

ApiResult ClassifyStatus(int http, const Json& status) {
  ApiResult result;
  result.http = http;
  result.reason = TextAt(status, {"reason"});
  result.message = TextAt(status, {"message"});
  if (const Json* seconds = ValueAt(status, {"details", "retryAfterSeconds"});
      seconds != nullptr && seconds->is_number_integer())
    result.retry_after = ParseRetryAfter(seconds->dump());
  result.code = CodeOf(http, result.reason, result.retry_after > Duration(0));
  return result;
}

const Json* ValueAt(const Json& object, std::initializer_list<const char*> path) {
  const Json* at = &object;
  for (const char* name : path) {
    if (!at->is_object()) return nullptr;
    const auto found = at->find(name);
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return at;
}

std::string_view TextAt(const Json& object, std::initializer_list<const char*> path) {
  const Json* value = ValueAt(object, path);
  if (value == nullptr || !value->is_string()) return {};
  return value->get_ref<const std::string&>();
}

}  // namespace longhaul::kube::api
