#include "operator/webhook/core/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/operator/webhook/reviews.h"

namespace longhaul::kube::webhook {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class AdmissionTest : public ::testing::Test {
 protected:
  AdmissionTest() { admission_.SetKey(kKey); }
  void Send(Hook hook, const Json& review, ReviewId id = 1) {
    admission_.OnReview(id, hook, review.dump(), now_);
  }
  Question Asked(ReviewId id = 1) {
    const auto question = admission_.NextQuestion();
    EXPECT_TRUE(question.has_value());
    if (!question) return {};
    EXPECT_EQ(question->id, id);
    return *question;
  }
  Json Response(ReviewId id = 1) {
    const auto answer = admission_.NextAnswer();
    EXPECT_TRUE(answer.has_value());
    if (!answer) return Json::object();
    EXPECT_EQ(answer->id, id);
    EXPECT_EQ(answer->http, 200) << answer->body;
    review_ = Json::parse(answer->body, nullptr, false);
    EXPECT_EQ(review_.value("apiVersion", ""), "admission.k8s.io/v1");
    EXPECT_EQ(review_.value("kind", ""), "AdmissionReview");
    EXPECT_EQ(review_["response"]["uid"], "705ab4f5-6393-11e8-b7cc-42010a800002");
    return review_["response"];
  }
  // Of a new job whose name is free, as far as the permission.
  Question AskedForPermission(const Json& job, ReviewId id = 1, const std::string& user = "alice") {
    Send(Hook::kValidate, Review("CREATE", job, nullptr, user), id);
    EXPECT_EQ(Asked(id).kind, Question::Kind::kName);
    admission_.OnName(id, false, now_);
    const Question question = Asked(id);
    EXPECT_EQ(question.kind, Question::Kind::kPermission);
    return question;
  }
  // The answer to a new job without a question for its permission.
  Json Remembered(const Json& job, const std::string& user = "alice") {
    Send(Hook::kValidate, Review("CREATE", job, nullptr, user));
    (void)Asked();
    admission_.OnName(1, false, now_);
    if (admission_.NextQuestion()) return nullptr;
    return Response();
  }
  int Code(const Json& response) { return response.value("status", Json::object()).value("code", 0); }
  std::string Message(const Json& response) {
    return response.value("status", Json::object()).value("message", "");
  }

  std::string Reason(const Json& response) {
    return response.value("status", Json::object()).value("reason", "");
  }

  Admission admission_;
  Instant now_ = Instant::FromNanoseconds(1'000'000'000'000);
  Json review_;
};

TEST_F(AdmissionTest, S5ADuplicateNameIsRefusedBeforePermissionIsAsked) {
  Send(Hook::kValidate, Review("CREATE", Job()));
  const Question question = Asked();
  EXPECT_EQ(question.kind, Question::Kind::kName);
  EXPECT_EQ(question.name_space, "training");
  EXPECT_EQ(question.name, "resnet");
  EXPECT_FALSE(admission_.NextAnswer()) << "nothing is said before the name is known";
  admission_.OnName(1, true, now_);
  const Json response = Response();
  EXPECT_EQ(response["allowed"], false);
  EXPECT_EQ(Code(response), 409);
  EXPECT_EQ(Reason(response), "AlreadyExists");
  EXPECT_THAT(Message(response), HasSubstr("task name already exists"));
  EXPECT_THAT(Message(response), HasSubstr("resnet in the namespace training; choose another name"));
  EXPECT_FALSE(admission_.NextQuestion()) << "no permission is asked for";
  EXPECT_EQ(admission_.counters().permissions_asked, 0u);
}

TEST_F(AdmissionTest, S5ADuplicateNameIsSaidBeforeAnythingElseIsWrong) {
  Json job = Stamped(Job(), "mallory");
  job["spec"]["totalGPUs"] = 0;
  Send(Hook::kValidate, Review("CREATE", job));
  (void)Asked();
  admission_.OnName(1, true, now_);
  EXPECT_EQ(Code(Response()), 409);
}

TEST_F(AdmissionTest, RulesAreCheckedBeforePermissionIsAsked) {
  Json job = Job();
  job["spec"]["totalGPUs"] = 5000;
  Send(Hook::kValidate, Review("CREATE", job));
  (void)Asked();
  admission_.OnName(1, false, now_);
  const Json response = Response();
  EXPECT_EQ(response["allowed"], false);
  EXPECT_EQ(Code(response), 422);
  EXPECT_EQ(Reason(response), "Invalid");
  EXPECT_THAT(Message(response), HasSubstr("spec.totalGPUs"));
  EXPECT_FALSE(admission_.NextQuestion());
}

TEST_F(AdmissionTest, ATemplateThatReachesTheHostIsRefused) {
  Json job = InlineJob();
  job["spec"]["node"]["nodeTemplate"]["spec"]["hostNetwork"] = true;
  Send(Hook::kValidate, Review("CREATE", job));
  (void)Asked();
  admission_.OnName(1, false, now_);
  EXPECT_THAT(Message(Response()), HasSubstr("hostNetwork"));
}

TEST_F(AdmissionTest, WhatIsNoNameIsNotLookedUp) {
  for (const char* name : {"", "..", "a/b", "A", "resnet?watch=1"}) {
    Send(Hook::kValidate, Review("CREATE", Job(name)));
    EXPECT_FALSE(admission_.NextQuestion()) << name;
    const Json response = Response();
    EXPECT_EQ(Code(response), 422);
    EXPECT_THAT(Message(response), HasSubstr("metadata.name"));
  }
}

TEST_F(AdmissionTest, S6PermissionIsTheVerbUseOnTheProfile) {
  const Question question = AskedForPermission(Job());
  EXPECT_EQ(question.access.user, "alice");
  EXPECT_EQ(question.access.groups, (std::vector<std::string>{"system:authenticated", "team"}));
  EXPECT_EQ(question.access.verb, "use");
  EXPECT_EQ(question.access.group, "longhaul.dev");
  EXPECT_EQ(question.access.resource, "trainingprofiles");
  EXPECT_EQ(question.access.name_space, "training");
  EXPECT_EQ(question.access.name, "a100");
  admission_.OnPermission(1, true, now_);
  EXPECT_EQ(Response()["allowed"], true);
}

TEST_F(AdmissionTest, S6AConfigurationInTheJobTakesTheRightToAllProfiles) {
  EXPECT_EQ(AskedForPermission(InlineJob()).access.name, "");
  admission_.OnPermission(1, false, now_);
  const Json response = Response();
  EXPECT_EQ(Code(response), 403);
  EXPECT_THAT(Message(response), HasSubstr("alice may not give a configuration in the job"));
  EXPECT_THAT(Message(response), HasSubstr("the verb use on all trainingprofiles"));
}

TEST_F(AdmissionTest, S6ARefusalNamesTheRoleThatIsMissing) {
  (void)AskedForPermission(Job());
  admission_.OnPermission(1, false, now_);
  const Json response = Response();
  EXPECT_EQ(response["allowed"], false);
  EXPECT_EQ(Code(response), 403);
  EXPECT_EQ(Reason(response), "Forbidden");
  EXPECT_EQ(Message(response),
            "alice may not use the training profile a100; ask for a role with the verb use on "
            "trainingprofiles/a100 in the namespace training");
}

TEST_F(AdmissionTest, S6AnAllowedPermissionIsRememberedFor300Seconds) {
  (void)AskedForPermission(Job());
  admission_.OnPermission(1, true, now_);
  (void)Response();
  now_ += seconds(299);
  EXPECT_EQ(Remembered(Job("other"))["allowed"], true);
  EXPECT_EQ(admission_.permission_counters().hits, 1u);
  now_ += seconds(1);
  EXPECT_TRUE(Remembered(Job("third")).is_null()) << "asked again";
}

TEST_F(AdmissionTest, S6ADeniedPermissionIsRememberedFor30Seconds) {
  (void)AskedForPermission(Job());
  admission_.OnPermission(1, false, now_);
  (void)Response();
  now_ += seconds(29);
  EXPECT_EQ(Code(Remembered(Job())), 403);
  now_ += seconds(1);
  EXPECT_TRUE(Remembered(Job()).is_null()) << "a role that was given meanwhile is seen";
}

TEST_F(AdmissionTest, S6APermissionIsOfOneUserAndOneProfile) {
  (void)AskedForPermission(Job());
  admission_.OnPermission(1, true, now_);
  (void)Response();
  EXPECT_TRUE(Remembered(Job(), "bob").is_null());
  admission_.OnPermission(1, false, now_);
  (void)Response();
  Json other = Job();
  other["spec"]["profileRef"]["name"] = "h100";
  EXPECT_TRUE(Remembered(other).is_null());
  admission_.OnPermission(1, false, now_);
  (void)Response();
  EXPECT_TRUE(Remembered(InlineJob()).is_null());
}

TEST_F(AdmissionTest, WithoutAnAnswerNothingIsAllowedAndNothingRemembered) {
  (void)AskedForPermission(Job());
  admission_.OnPermission(1, Status(StatusCode::kUnavailable, "no route"), now_);
  Json response = Response();
  EXPECT_EQ(response["allowed"], false);
  EXPECT_EQ(Code(response), 503);
  EXPECT_THAT(Message(response), HasSubstr("no route"));
  EXPECT_THAT(Message(response), HasSubstr("try again"));
  EXPECT_TRUE(Remembered(Job()).is_null());
  admission_.Forget(1);
  Send(Hook::kValidate, Review("CREATE", Job()));
  (void)Asked();
  admission_.OnName(1, Status(StatusCode::kUnavailable, "no route"), now_);
  response = Response();
  EXPECT_EQ(response["allowed"], false);
  EXPECT_EQ(Code(response), 503);
  EXPECT_EQ(admission_.counters().unanswered, 2u);
}

TEST_F(AdmissionTest, AReviewThatWaitsTooLongIsDeniedInWords) {
  (void)AskedForPermission(Job());
  EXPECT_EQ(admission_.NextTimeout(), now_ + seconds(4));
  admission_.OnTime(now_ + seconds(4) - Duration(1));
  EXPECT_FALSE(admission_.NextAnswer());
  admission_.OnTime(now_ + seconds(4));
  const Json response = Response();
  EXPECT_EQ(response["allowed"], false);
  EXPECT_EQ(Code(response), 504);
  EXPECT_TRUE(admission_.NextTimeout().IsInfinite());
  admission_.OnPermission(1, true, now_);
  EXPECT_FALSE(admission_.NextAnswer()) << "one answer for each review";
}

TEST_F(AdmissionTest, ReviewsThatWaitHaveABound) {
  for (ReviewId id = 1; id <= 64; ++id) Send(Hook::kValidate, Review("CREATE", Job()), id);
  EXPECT_FALSE(admission_.NextAnswer());
  Send(Hook::kValidate, Review("CREATE", Job()), 65);
  const Json response = Response(65);
  EXPECT_EQ(Code(response), 429);
  EXPECT_EQ(admission_.counters().refused, 1u);
  EXPECT_EQ(admission_.waiting(), 64u);
}

TEST_F(AdmissionTest, AnswersOfAnotherKindOrIdChangeNothing) {
  Send(Hook::kValidate, Review("CREATE", Job()));
  admission_.OnPermission(1, true, now_);
  admission_.OnName(2, false, now_);
  EXPECT_FALSE(admission_.NextAnswer());
  EXPECT_EQ(admission_.waiting(), 1u);
  admission_.Forget(1);
  EXPECT_FALSE(admission_.NextQuestion());
  EXPECT_EQ(admission_.waiting(), 0u);
}

TEST_F(AdmissionTest, TheRequesterIsStampedWhateverItWas) {
  Send(Hook::kMutate, Review("CREATE", Job()));
  EXPECT_EQ(Response()["allowed"], true);
  EXPECT_EQ(
      PatchOf(review_),
      Json::array(
          {{{"op", "add"}, {"path", "/metadata/annotations"}, {"value", Json::object()}},
           {{"op", "add"}, {"path", "/metadata/annotations/longhaul.dev~1requester"}, {"value", "alice"}},
           {{"op", "add"},
            {"path", "/metadata/annotations/longhaul.dev~1requester-identity"},
            {"value", R"({"groups":["system:authenticated","team"]})"}},
           {{"op", "add"},
            {"path", "/metadata/annotations/longhaul.dev~1requester-proof"},
            {"value", Stamped(Job(), "alice")["metadata"]["annotations"]["longhaul.dev/requester-proof"]}}}));
  EXPECT_EQ(Job().patch(PatchOf(review_)), Stamped(Job(), "alice"));
  const Json forged = Stamped(Job(), "root");
  Send(Hook::kMutate, Review("CREATE", forged));
  (void)Response();
  EXPECT_EQ(forged.patch(PatchOf(review_)), Stamped(Job(), "alice"));
  Json others = Job();
  others["metadata"]["annotations"]["team"] = "vision";
  Send(Hook::kMutate, Review("CREATE", others));
  (void)Response();
  EXPECT_EQ(others.patch(PatchOf(review_)), Stamped(others, "alice")) << "other annotations stay";
  Send(Hook::kMutate, Review("CREATE", Stamped(Job(), "alice")));
  EXPECT_FALSE(Response().contains("patch")) << "nothing to change";
  EXPECT_EQ(admission_.counters().stamped, 3u);
}

TEST_F(AdmissionTest, TheRequesterStaysWhichUserEverChangesTheJob) {
  const Json before = Stamped(Job(), "alice");
  for (const Json& after : {Job(), Stamped(Job(), "bob")}) {
    Send(Hook::kMutate, Review("UPDATE", after, before, "bob"));
    (void)Response();
    EXPECT_EQ(after.patch(PatchOf(review_)), before);
  }
  // A job of before the webhooks has none, and gets none.
  Send(Hook::kMutate, Review("UPDATE", Stamped(Job(), "bob"), Job(), "bob"));
  (void)Response();
  EXPECT_TRUE(
      PatchOf(review_) ==
      Json::array({{{"op", "remove"}, {"path", "/metadata/annotations/longhaul.dev~1requester"}},
                   {{"op", "remove"}, {"path", "/metadata/annotations/longhaul.dev~1requester-identity"}},
                   {{"op", "remove"}, {"path", "/metadata/annotations/longhaul.dev~1requester-proof"}}}));
}

TEST_F(AdmissionTest, S6TheProofIsOfOneUserAndOneSpecAndOneNamespace) {
  const Json stamped = Stamped(Job(), "alice");
  EXPECT_TRUE(HasProof(kKey, stamped));
  EXPECT_FALSE(HasProof(std::string(32, 'x'), stamped));
  EXPECT_FALSE(HasProof(kKey, Job()));
  for (const char* path : {"/metadata/annotations/longhaul.dev~1requester",
                           "/metadata/annotations/longhaul.dev~1requester-identity",
                           "/metadata/annotations/longhaul.dev~1requester-proof", "/metadata/namespace",
                           "/spec/profileRef/name", "/spec/image", "/spec/script/inline"}) {
    Json other = stamped;
    other[Json::json_pointer(path)] = "another";
    EXPECT_FALSE(HasProof(kKey, other)) << path;
  }
  Json later = stamped;  // what may change
  later["spec"]["runPolicy"] = {{"suspend", true}};
  later["spec"]["elastic"] = {{"minNodes", 2}};
  EXPECT_TRUE(HasProof(kKey, later));
}

TEST_F(AdmissionTest, BeforeTheOperatorHasItsKeyNoJobIsCreated) {
  admission_.SetKey("");
  for (const Hook hook : {Hook::kMutate, Hook::kValidate}) {
    Send(hook, Review("CREATE", Job()));
    const Json response = Response();
    EXPECT_EQ(Code(response), 503);
    EXPECT_THAT(Message(response), HasSubstr("has not read its key yet: try again"));
  }
  Send(Hook::kMutate, Review("UPDATE", Stamped(Job(), "alice"), Stamped(Job(), "alice")));
  EXPECT_EQ(Response()["allowed"], true);
}

TEST_F(AdmissionTest, WithoutTheStampARequesterIsStillNotForged) {
  Send(Hook::kValidate, Review("CREATE", Stamped(Job(), "root")));
  (void)Asked();
  admission_.OnName(1, false, now_);
  Json response = Response();
  EXPECT_EQ(Code(response), 403);
  EXPECT_THAT(Message(response), HasSubstr("names another user"));
  for (const Json& after : {Job(), Stamped(Job(), "bob")}) {
    Send(Hook::kValidate, Review("UPDATE", after, Stamped(Job(), "alice"), "bob"));
    response = Response();
    EXPECT_EQ(Code(response), 403);
    EXPECT_THAT(Message(response), HasSubstr("cannot change"));
  }
  (void)AskedForPermission(Stamped(Job(), "alice"));
}

// The user with a uid and an entry of an authorizer's own.
Json ReviewOfAWholeUser(const std::string& operation, const Json& object, const Json& before = nullptr) {
  Json review = Review(operation, object, before);
  review["request"]["userInfo"]["uid"] = "u-1";
  review["request"]["userInfo"]["extra"] = {{"example.org/scope", {"train"}}};
  return review;
}
constexpr const char* kWholeIdentity =
    R"({"extra":{"example.org/scope":["train"]},"groups":["system:authenticated","team"],"uid":"u-1"})";

TEST_F(AdmissionTest, S6GroupsUidAndExtraAreStampedAndAskedFor) {
  Send(Hook::kMutate, ReviewOfAWholeUser("CREATE", Job()));
  (void)Response();
  EXPECT_EQ(Job().patch(PatchOf(review_)), Stamped(Job(), "alice", kWholeIdentity));
  Send(Hook::kValidate, ReviewOfAWholeUser("CREATE", Stamped(Job(), "alice", kWholeIdentity)));
  (void)Asked();
  admission_.OnName(1, false, now_);
  const Question question = Asked();
  EXPECT_EQ(question.access.groups, (std::vector<std::string>{"system:authenticated", "team"}));
  EXPECT_EQ(question.access.uid, "u-1");
  EXPECT_EQ(question.access.extra.at("example.org/scope"), std::vector<std::string>{"train"});
}

TEST_F(AdmissionTest, S6GroupsAreNotForged) {
  const Json forged = Stamped(Job(), "alice", R"({"groups":["system:masters"]})");
  Send(Hook::kMutate, Review("CREATE", forged));
  (void)Response();
  EXPECT_EQ(forged.patch(PatchOf(review_)), Stamped(Job(), "alice"));
  // Where the first webhook is not there.
  Send(Hook::kValidate, Review("CREATE", forged));
  (void)Asked();
  admission_.OnName(1, false, now_);
  Json response = Response();
  EXPECT_EQ(Code(response), 403);
  EXPECT_THAT(Message(response), HasSubstr("longhaul.dev/requester-identity names another user"));
  // Later.
  Send(Hook::kMutate, Review("UPDATE", forged, Stamped(Job(), "alice")));
  (void)Response();
  EXPECT_EQ(forged.patch(PatchOf(review_)), Stamped(Job(), "alice"));
  Send(Hook::kValidate, Review("UPDATE", forged, Stamped(Job(), "alice")));
  response = Response();
  EXPECT_EQ(Code(response), 403);
  EXPECT_THAT(Message(response), HasSubstr("longhaul.dev/requester-identity cannot change"));
}

TEST_F(AdmissionTest, S6AUserOfTooManyGroupsIsRefusedInWords) {
  Json many = Review("CREATE", Job());
  many["request"]["userInfo"]["groups"] = std::vector<std::string>(256, "g");
  Send(Hook::kMutate, many);
  EXPECT_EQ(Response()["allowed"], true);
  many["request"]["userInfo"]["groups"].push_back("g");
  Json large = Review("CREATE", Job());
  large["request"]["userInfo"]["extra"]["a"] = {std::string(16 << 10, 'x')};
  for (const Json& review : {many, large}) {
    for (const Hook hook : {Hook::kMutate, Hook::kValidate}) {
      Send(hook, review);
      const Json response = Response();
      EXPECT_EQ(response["allowed"], false);
      EXPECT_EQ(Code(response), 403);
      EXPECT_THAT(Message(response), HasSubstr("alice is in "));
      EXPECT_THAT(Message(response), HasSubstr("a job keeps 256 groups and 16384 bytes of its requester"));
      EXPECT_THAT(Message(response), HasSubstr("create it as a service account"));
    }
  }
  many["request"]["operation"] = "UPDATE";
  many["request"]["oldObject"] = Job();
  Send(Hook::kMutate, many);
  EXPECT_EQ(Response()["allowed"], true) << "a change keeps nothing of the user";
}

TEST_F(AdmissionTest, S6APermissionIsOfAUserInItsGroups) {
  (void)AskedForPermission(Job());
  admission_.OnPermission(1, true, now_);
  (void)Response();
  Json left = Review("CREATE", Job());
  left["request"]["userInfo"]["groups"] = {"system:authenticated"};
  Send(Hook::kValidate, left);
  (void)Asked();
  admission_.OnName(1, false, now_);
  EXPECT_EQ(Asked().kind, Question::Kind::kPermission) << "alice has left the team meanwhile";
}

TEST_F(AdmissionTest, WhatMayChangeMayAndNothingElse) {
  Json after = Job();
  after["spec"]["runPolicy"]["suspend"] = true;
  Send(Hook::kValidate, Review("UPDATE", after, Job()));
  EXPECT_EQ(Response()["allowed"], true);
  after["spec"]["totalGPUs"] = 16;
  Send(Hook::kValidate, Review("UPDATE", after, Job()));
  const Json response = Response();
  EXPECT_EQ(response["allowed"], false);
  EXPECT_EQ(Code(response), 422);
  EXPECT_THAT(Message(response), HasSubstr("spec.totalGPUs: cannot change"));
  EXPECT_FALSE(admission_.NextQuestion()) << "a change takes no permission of its own";
}

TEST_F(AdmissionTest, AJobOlderThanARuleMayLoseItsFinalizer) {
  Json before = Job();
  before["spec"]["unknown"] = 1;
  before["metadata"]["finalizers"] = {"longhaul.dev/remote-sites"};
  Json after = before;
  after["metadata"].erase("finalizers");
  Send(Hook::kValidate, Review("UPDATE", after, before));
  EXPECT_EQ(Response()["allowed"], true);
}

TEST_F(AdmissionTest, DeletionsAndTheStatusPass) {
  for (const Hook hook : {Hook::kMutate, Hook::kValidate}) {
    for (const char* operation : {"DELETE", "CONNECT"}) {
      Send(hook, Review(operation, nullptr, Job()));
      EXPECT_EQ(Response()["allowed"], true);
    }
    Json status = Review("UPDATE", Stamped(Job(), "bob"), Job());
    status["request"]["subResource"] = "status";
    Send(hook, status);
    EXPECT_EQ(Response()["allowed"], true);
    EXPECT_TRUE(PatchOf(review_).is_null());
  }
}

TEST_F(AdmissionTest, WhatIsNoReviewIsAnsweredWith400InWords) {
  const auto without = [](const char* key) {
    Json review = Review("CREATE", Job());
    review["request"].erase(key);
    return review.dump();
  };
  const auto with = [](const char* key, const Json& value) {
    Json review = Review("CREATE", Job());
    review["request"][key] = value;
    return review.dump();
  };
  Json beta = Review("CREATE", Job());
  beta["apiVersion"] = "admission.k8s.io/v1beta1";
  const std::pair<std::string, const char*> cases[] = {
      {"", "no JSON object"},
      {"\xff\xfe", "no JSON object"},
      {"[]", "no JSON object"},
      {"{}", "AdmissionReview"},
      {beta.dump(), "admissionReviewVersions"},
      {R"({"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":7})", "request: is missing"},
      {without("uid"), "uid"},
      {with("uid", std::string(254, 'u')), "uid"},
      {without("operation"), "operation"},
      {with("operation", "PATCH"), "operation"},
      {with("resource", {{"group", ""}, {"resource", "pods"}}), "trainingjobs"},
      {with("resource", {{"group", "longhaul.dev"}, {"resource", "trainingprofiles"}}), "trainingjobs"},
      {without("namespace"), "namespace"},
      {with("namespace", "a/b"), "namespace"},
      {without("userInfo"), "username"},
      {with("userInfo", {{"username", "a"}, {"groups", "team"}}), "request.userInfo.groups: is no list"},
      {with("userInfo", {{"username", "a"}, {"groups", {1}}}), "request.userInfo.groups: is no list"},
      {with("userInfo", {{"username", "a"}, {"uid", 1}}), "request.userInfo.uid: is no string"},
      {with("userInfo", {{"username", "a"}, {"extra", {1}}}), "request.userInfo.extra: is no object"},
      {with("userInfo", {{"username", "a"}, {"extra", {{"x", "y"}}}}),
       "request.userInfo.extra: has an entry"},
      {without("object"), "request.object"},
      {with("object", "text"), "request.object"},
      {with("operation", "UPDATE"), "request.oldObject"},
      {std::string(100'000, '['), "deeper"},
      {"{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}", "deeper than 64"},
  };
  for (const auto& [body, words] : cases) {
    for (const Hook hook : {Hook::kMutate, Hook::kValidate}) {
      admission_.OnReview(1, hook, body, now_);
      const auto answer = admission_.NextAnswer();
      ASSERT_TRUE(answer.has_value());
      EXPECT_EQ(answer->http, 400) << body.substr(0, 300);
      EXPECT_THAT(answer->body, HasSubstr(words));
    }
  }
  EXPECT_EQ(admission_.counters().malformed, 2 * std::size(cases));
}

TEST_F(AdmissionTest, AReviewOfTooManyValuesIsNotKept) {
  std::string body = R"({"kind":"AdmissionReview","x":[0)";
  for (int i = 0; i < 60'000; ++i) body += ",0";
  admission_.OnReview(1, Hook::kValidate, body + "]}", now_);
  const auto answer = admission_.NextAnswer();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->http, 400);
  EXPECT_THAT(answer->body, HasSubstr("more than 60000 values"));
}

TEST_F(AdmissionTest, NamesInMessagesCommandNoTerminal) {
  (void)AskedForPermission(Job(), 1, "al\x1b[31mice");
  admission_.OnPermission(1, false, now_);
  EXPECT_EQ(Message(Response()).find('\x1b'), std::string::npos);
}

TEST(Hooks, HaveThePathsOfTheirConfigurations) {
  EXPECT_EQ(HookOf("/mutate", ""), Hook::kMutate);
  EXPECT_EQ(HookOf("/validate", ""), Hook::kValidate);
  EXPECT_EQ(HookOf("/validate/of-a-later-version", ""), Hook::kValidate);
  EXPECT_FALSE(HookOf("/", "").has_value());
  EXPECT_FALSE(HookOf("/validates", "").has_value());
  EXPECT_EQ(HookOf("/mutate/secret", "secret"), Hook::kMutate);
  EXPECT_EQ(HookOf("/validate/secret", "secret"), Hook::kValidate);
  for (const char* path :
       {"/mutate", "/mutate/", "/mutate/secre", "/mutate/secrets", "/mutate/Secret", "/mutate-secret"})
    EXPECT_FALSE(HookOf(path, "secret").has_value()) << path;
}

}  // namespace
}  // namespace longhaul::kube::webhook
