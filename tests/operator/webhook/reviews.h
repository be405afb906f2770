// AdmissionReviews as an API server sends them, and what stands in the answers.
#pragma once

#include <string>

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include "operator/api/core/api_result.h"
#include "operator/resource/stamp.h"

namespace longhaul::kube::webhook {

using api::Json;

inline Json Job(const std::string& name = "resnet") {
  return {{"apiVersion", "longhaul.dev/v1alpha1"},
          {"kind", "TrainingJob"},
          {"metadata", {{"name", name}, {"namespace", "training"}}},
          {"spec",
           {{"profileRef", {{"name", "a100"}}},
            {"totalGPUs", 15},
            {"image", "registry.example/worker"},
            {"script", {{"inline", "#!/bin/sh\ntrue\n"}}}}}};
}

inline Json InlineJob(const std::string& name = "small") {
  Json job = Job(name);
  job["spec"].erase("profileRef");
  job["spec"]["node"] = {{"maxGPUs", 10}};
  return job;
}

inline const std::string kKey(32, 'k');  // the operator's

// As the user of Review.
inline Json Stamped(Json job, const std::string& requester,
                    const std::string& identity = R"({"groups":["system:authenticated","team"]})") {
  job["metadata"]["annotations"]["longhaul.dev/requester"] = requester;
  job["metadata"]["annotations"]["longhaul.dev/requester-identity"] = identity;
  job["metadata"]["annotations"]["longhaul.dev/requester-proof"] =
      RequesterProof(kKey, "training", requester, identity, job["spec"]);
  return job;
}

inline Json Review(const std::string& operation, const Json& object, const Json& before = nullptr,
                   const std::string& user = "alice") {
  return {{"apiVersion", "admission.k8s.io/v1"},
          {"kind", "AdmissionReview"},
          {"request",
           {{"uid", "705ab4f5-6393-11e8-b7cc-42010a800002"},
            {"kind", {{"group", "longhaul.dev"}, {"version", "v1alpha1"}, {"kind", "TrainingJob"}}},
            {"resource", {{"group", "longhaul.dev"}, {"version", "v1alpha1"}, {"resource", "trainingjobs"}}},
            {"name", object.is_object() ? object["metadata"].value("name", "") : ""},
            {"namespace", "training"},
            {"operation", operation},
            {"userInfo", {{"username", user}, {"groups", {"system:authenticated", "team"}}}},
            {"object", object},
            {"oldObject", before},
            {"dryRun", false}}}};
}

inline Json PatchOf(const Json& review) {
  if (!review["response"].contains("patch")) return nullptr;
  EXPECT_EQ(review["response"]["patchType"], "JSONPatch");
  const std::string text = review["response"]["patch"];
  std::string bytes(text.size(), '\0');
  const int size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  EXPECT_GE(size, 0);
  bytes.resize(static_cast<size_t>(size));
  while (!bytes.empty() && bytes.back() == '\0') bytes.pop_back();
  return Json::parse(bytes, nullptr, false);
}

}  // namespace longhaul::kube::webhook
