// What goes over the wire for each verb, what is refused before, what an answer is called, and what is asked
// again.
#include "operator/api/core/api_request.h"

#include <gtest/gtest.h>

#include <string>

#include "operator/api/core/retry_policy.h"
#include "tests/operator/api/answers.h"

namespace longhaul::kube::api {
namespace {

const ResourceType kPods{"", "v1", "pods", true};
const ResourceType kJobs{"longhaul.dev", "v1alpha1", "trainingjobs", true};

ApiRequest Of(Verb verb, const ResourceType& type, const std::string& name = "") {
  ApiRequest request;
  request.verb = verb;
  request.type = type;
  request.name_space = "ns";
  request.name = name;
  request.body = verb == Verb::kJsonPatch ? Json::array() : Json::object();
  return request;
}
std::string Line(const ApiRequest& request) {
  const auto http = Encode(request);
  return http.ok() ? http->method + " " + http->target + " " + http->content_type : http.status().ToString();
}

TEST(ApiRequest, EachVerbHasItsMethodPathAndType) {
  EXPECT_EQ(Line(Of(Verb::kGet, kPods, "a")), "GET /api/v1/namespaces/ns/pods/a ");
  EXPECT_EQ(Line(Of(Verb::kGet, kJobs, "a")),
            "GET /apis/longhaul.dev/v1alpha1/namespaces/ns/trainingjobs/a ");
  EXPECT_EQ(Line(Of(Verb::kList, kPods)), "GET /api/v1/namespaces/ns/pods?limit=500 ");
  EXPECT_EQ(Line(Of(Verb::kCreate, kPods)), "POST /api/v1/namespaces/ns/pods application/json");
  EXPECT_EQ(Line(Of(Verb::kReplace, kPods, "a")), "PUT /api/v1/namespaces/ns/pods/a application/json");
  EXPECT_EQ(Line(Of(Verb::kMergePatch, kPods, "a")),
            "PATCH /api/v1/namespaces/ns/pods/a application/merge-patch+json");
  EXPECT_EQ(Line(Of(Verb::kJsonPatch, kPods, "a")),
            "PATCH /api/v1/namespaces/ns/pods/a application/json-patch+json");
  EXPECT_EQ(Line(Of(Verb::kDelete, kPods, "a")), "DELETE /api/v1/namespaces/ns/pods/a application/json");
  ApiRequest apply = Of(Verb::kApply, kJobs, "a");
  apply.field_manager = "longhaul operator";
  apply.force = true;
  apply.subresource = "status";
  EXPECT_EQ(Line(apply),
            "PATCH "
            "/apis/longhaul.dev/v1alpha1/namespaces/ns/trainingjobs/a/"
            "status?fieldManager=longhaul%20operator&force=true "
            "application/apply-patch+yaml");
}

TEST(ApiRequest, ListsAndWatchesCarryTheirQuestion) {
  ApiRequest list = Of(Verb::kList, kPods);
  list.name_space.clear();
  list.label_selector = "longhaul.dev/job=a,b!=c";
  list.continue_token = "x&y=";
  EXPECT_EQ(Line(list),
            "GET /api/v1/pods?labelSelector=longhaul.dev%2Fjob%3Da%2Cb%21%3Dc&limit=500&continue=x%26y%3D ");
  ApiRequest watch = Of(Verb::kWatch, kPods);
  watch.resource_version = "77";
  watch.watch_time = std::chrono::seconds(450);
  EXPECT_EQ(
      Line(watch),
      "GET "
      "/api/v1/namespaces/ns/pods?watch=1&allowWatchBookmarks=true&resourceVersion=77&timeoutSeconds=450 ");
}

TEST(ApiRequest, ADeleteNamesTheObjectItMeansAndWhatBecomesOfItsParts) {
  ApiRequest request = Of(Verb::kDelete, kPods, "a");
  request.uid = "u-1";
  request.propagation = "Background";
  const Json body = Json::parse(Encode(request)->body);
  EXPECT_EQ(body["preconditions"]["uid"], "u-1");
  EXPECT_EQ(body["propagationPolicy"], "Background");
  EXPECT_EQ(body["kind"], "DeleteOptions");
}

TEST(ApiRequest, WhatCannotBeIsRefusedWithTheReason) {
  ApiRequest bad[] = {Of(Verb::kGet, kPods),
                      Of(Verb::kList, kPods, "a"),
                      Of(Verb::kCreate, kPods, "a"),
                      Of(Verb::kApply, kPods, "a"),
                      Of(Verb::kGet, kPods, ".."),
                      Of(Verb::kGet, kPods, "a"),
                      Of(Verb::kCreate, kPods),
                      Of(Verb::kJsonPatch, kPods, "a"),
                      Of(Verb::kDelete, kPods, "a"),
                      Of(Verb::kGet, kPods, "a"),
                      Of(Verb::kGet, {"", "", "pods", true}, "a")};
  bad[5].name_space.clear();
  bad[6].body = Json::array();
  bad[7].body = Json::object();
  bad[8].propagation = "background";
  bad[9].type.namespaced = false;
  for (const ApiRequest& request : bad) {
    EXPECT_EQ(Encode(request).status().code(), StatusCode::kInvalidArgument) << Line(request);
    EXPECT_FALSE(Encode(request).status().message().empty());
  }
  EXPECT_EQ(Line(Of(Verb::kGet, kPods, "../../secrets/x?y#z")),
            "GET /api/v1/namespaces/ns/pods/..%2F..%2Fsecrets%2Fx%3Fy%23z ");
}

TEST(ApiRequest, TextThatIsNoUtf8InABodyThrowsNothing) {
  ApiRequest create = Of(Verb::kCreate, kPods);
  create.body = {{"name", "\xff\xfe"}};
  EXPECT_TRUE(ParseJson(Encode(create)->body).has_value());
}

TEST(ApiRequest, AReviewOfAccessAsksAndItsAnswerIsRead) {
  const ApiRequest request =
      SubjectAccessReview({"ann", {"team"}, "use", "longhaul.dev", "trainingprofiles", "ns", "large"});
  EXPECT_EQ(Line(request), "POST /apis/authorization.k8s.io/v1/subjectaccessreviews application/json");
  const Json& spec = request.body["spec"];
  EXPECT_EQ(spec["user"], "ann");
  EXPECT_EQ(spec["groups"][0], "team");
  EXPECT_EQ(spec["resourceAttributes"]["verb"], "use");
  EXPECT_EQ(spec["resourceAttributes"]["name"], "large");
  EXPECT_FALSE(spec.contains("uid") || spec.contains("extra"));
  AccessQuestion whole{"ann", {}, "use", "longhaul.dev",        "trainingprofiles",
                       "ns",  "", "u-1", {{"scope", {"train"}}}};
  const Json more = SubjectAccessReview(whole).body["spec"];
  EXPECT_EQ(more["uid"], "u-1");
  EXPECT_EQ(more["extra"], Json({{"scope", {"train"}}}));
  ApiResult answer = Ok();
  answer.body = {{"status", {{"allowed", true}}}};
  EXPECT_TRUE(*IsAllowed(answer));
  answer.body["status"]["denied"] = true;
  EXPECT_FALSE(*IsAllowed(answer));
  answer.body = {{"status", {{"allowed", false}}}};
  EXPECT_FALSE(*IsAllowed(answer));
  answer.body = Json::object();
  EXPECT_EQ(IsAllowed(answer).status().code(), StatusCode::kProtocolViolation);
  EXPECT_FALSE(IsAllowed(MakeError(ApiCode::kForbidden, "x")).ok());
}

TEST(ApiResult, EachStatusHasItsName) {
  const std::pair<int, ApiCode> codes[] = {
      {400, ApiCode::kInvalid},     {401, ApiCode::kUnauthorized}, {403, ApiCode::kForbidden},
      {404, ApiCode::kNotFound},    {405, ApiCode::kInvalid},      {409, ApiCode::kConflict},
      {410, ApiCode::kGone},        {415, ApiCode::kInvalid},      {422, ApiCode::kInvalid},
      {429, ApiCode::kThrottled},   {500, ApiCode::kServerError},  {503, ApiCode::kServerError},
      {504, ApiCode::kServerError}, {302, ApiCode::kMalformed},    {100, ApiCode::kMalformed}};
  for (const auto& [http, code] : codes) {
    EXPECT_EQ(Classify(http, R"({"kind":"Status","reason":"R","message":"M"})", "").code, code) << http;
  }
  EXPECT_EQ(Classify(409, R"({"reason":"AlreadyExists"})", "").code, ApiCode::kAlreadyExists);
  EXPECT_EQ(Classify(503, "", "3").code, ApiCode::kThrottled);
  EXPECT_EQ(Classify(503, R"({"details":{"retryAfterSeconds":7}})", "").retry_after, std::chrono::seconds(7));
  EXPECT_EQ(Classify(201, R"({"a":1})", "").code, ApiCode::kOk);
  EXPECT_EQ(Classify(200, "<html>login</html>", "").code, ApiCode::kMalformed);
  EXPECT_NE(Classify(200, "<html>login</html>", "").message.find("<html>login"), std::string::npos);
  EXPECT_EQ(Classify(200, "", "").code, ApiCode::kMalformed);
  EXPECT_EQ(Classify(502, "Bad\x01Gateway", "").message, "Bad?Gateway");
  EXPECT_EQ(Classify(409, R"({"reason":"Conflict","message":"modified"})", "").ToString(),
            "Conflict (409): modified");
}

TEST(ApiResult, RetryAfterIsSecondsWithinABound) {
  EXPECT_EQ(ParseRetryAfter(""), Duration(0));
  EXPECT_EQ(ParseRetryAfter("7"), std::chrono::seconds(7));
  EXPECT_EQ(ParseRetryAfter("86400"), kMaxRetryAfter);
  EXPECT_EQ(ParseRetryAfter("99999999999999999999999"), kMaxRetryAfter);
  EXPECT_EQ(ParseRetryAfter("-5"), std::chrono::seconds(1));
  EXPECT_EQ(ParseRetryAfter("Wed, 21 Oct 2026 07:28:00 GMT"), std::chrono::seconds(1));
}

TEST(ApiResult, JsonThatIsTooDeepIsNone) {
  EXPECT_TRUE(ParseJson(std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']')).has_value());
  EXPECT_FALSE(
      ParseJson(std::string(kMaxJsonDepth + 1, '[') + std::string(kMaxJsonDepth + 1, ']')).has_value());
  EXPECT_TRUE(ParseJson("[\"" + std::string(500, '[') + "\\\"" + std::string(500, '{') + "\"]").has_value())
      << "in a string";
}

TEST(RetryPolicy, WhatTheServerHasNotDoneIsAskedAgainNeverTooSoon) {
  RetryBounds bounds;
  ApiResult busy = MakeError(ApiCode::kThrottled, "x");
  busy.retry_after = std::chrono::seconds(3);
  for (const double chance : {0.0, 0.5, 1.0}) {
    const auto wait = NextAttempt(busy, Verb::kCreate, 1, bounds, chance);
    ASSERT_TRUE(wait.has_value());
    EXPECT_GE(*wait, std::chrono::seconds(3));
    EXPECT_LE(*wait, std::chrono::milliseconds(3250));
  }
  EXPECT_FALSE(NextAttempt(busy, Verb::kGet, bounds.attempts, bounds, 0).has_value());
}

TEST(RetryPolicy, WhatMayHaveHappenedIsRepeatedOnlyWhereThatDoesNoHarm) {
  for (const ApiCode code : {ApiCode::kServerError, ApiCode::kUnreachable, ApiCode::kTimedOut}) {
    const ApiResult result = MakeError(code, "x");
    for (const Verb verb : {Verb::kGet, Verb::kList, Verb::kWatch, Verb::kReplace, Verb::kApply,
                            Verb::kMergePatch, Verb::kDelete})
      EXPECT_TRUE(NextAttempt(result, verb, 1, {}, 0).has_value());
    for (const Verb verb : {Verb::kCreate, Verb::kJsonPatch}) {
      EXPECT_FALSE(NextAttempt(result, verb, 1, {}, 0).has_value());
      ApiResult not_sent = result;
      not_sent.not_sent = true;
      EXPECT_TRUE(NextAttempt(not_sent, verb, 1, {}, 0).has_value());
    }
  }
}

TEST(RetryPolicy, WhatSaysTheSameAgainIsFinal) {
  for (const ApiCode code : {ApiCode::kNotFound, ApiCode::kAlreadyExists, ApiCode::kConflict, ApiCode::kGone,
                             ApiCode::kInvalid, ApiCode::kUnauthorized, ApiCode::kForbidden,
                             ApiCode::kUntrusted, ApiCode::kTooLarge, ApiCode::kMalformed})
    EXPECT_FALSE(NextAttempt(MakeError(code, "x"), Verb::kGet, 1, {}, 0).has_value()) << ApiCodeName(code);
}

TEST(RetryPolicy, BackOffDoublesToItsEndAndHalfOfItIsChance) {
  using std::chrono::milliseconds;
  EXPECT_EQ(BackOff(milliseconds(250), milliseconds(10'000), 1, 1), milliseconds(250));
  EXPECT_EQ(BackOff(milliseconds(250), milliseconds(10'000), 4, 1), milliseconds(2000));
  EXPECT_EQ(BackOff(milliseconds(250), milliseconds(10'000), 4, 0), milliseconds(1000));
  EXPECT_EQ(BackOff(milliseconds(250), milliseconds(10'000), 4'000'000'000u, 1), milliseconds(10'000));
}

}  // namespace
}  // namespace longhaul::kube::api
