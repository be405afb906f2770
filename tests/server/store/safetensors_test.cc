// Headers that lie: nothing in them is believed that the file does not bear out.
#include "server/store/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/store/manifest.h"

namespace longhaul::server::store {
namespace {

using testing::HasSubstr;

std::string Why(const std::string& json, uint64_t data_bytes) {
  const auto header = DecodeHeader(json, data_bytes);
  EXPECT_EQ(header.status().code(), StatusCode::kDataLoss) << json;
  return header.status().message();
}

std::string Entry(const std::string& shape, const std::string& offsets, const std::string& dtype = "F32") {
  return R"({"dtype":")" + dtype + R"(","shape":[)" + shape + R"(],"data_offsets":[)" + offsets + "]}";
}

TEST(SafetensorsHeader, IsReadAsItWasWritten) {
  const SafetensorsHeader header{.tensors = {{"b", 3}, {"a", 1}}, .metadata = {{"k", "v"}}};
  const auto text = EncodeHeader(header);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->size() % 8, 0u) << "so that values are aligned";
  const auto length = DecodeHeaderLength(text->substr(0, 8), text->size() + 16);
  ASSERT_TRUE(length.ok());
  EXPECT_EQ(*length, text->size() - 8);
  const auto again = DecodeHeader(text->substr(8), 16);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->tensors, header.tensors);
  EXPECT_EQ(again->metadata, header.metadata);
}

TEST(SafetensorsHeader, MayNotBeLongerThanItsFileOrThanAnyHeader) {
  EXPECT_TRUE(DecodeHeaderLength({"\x08\0\0\0\0\0\0\0", 8}, 16).ok());
  EXPECT_FALSE(DecodeHeaderLength({"\x09\0\0\0\0\0\0\0", 8}, 16).ok());
  EXPECT_FALSE(DecodeHeaderLength({"\xff\xff\xff\xff\xff\xff\xff\xff", 8}, uint64_t{1} << 40).ok());
  EXPECT_FALSE(DecodeHeaderLength({"\x01\0\0\x01\0\0\0\0", 8}, uint64_t{1} << 40).ok()) << "16 MiB and one";
  EXPECT_TRUE(DecodeHeaderLength({"\0\0\0\x01\0\0\0\0", 8}, uint64_t{1} << 40).ok());
}

TEST(SafetensorsHeader, SaysWhereEveryByteBelongsOnce) {
  EXPECT_TRUE(DecodeHeader(R"({"a":)" + Entry("2", "0,8") + "}", 8).ok());
  EXPECT_TRUE(DecodeHeader(R"({"b":)" + Entry("1", "8,12") + R"(,"a":)" + Entry("2", "0,8") + "}", 12).ok())
      << "in any order";
  EXPECT_THAT(Why(R"({"a":)" + Entry("2", "0,8") + "}", 12), HasSubstr("have 8 bytes, the file 12"));
  EXPECT_THAT(Why(R"({"a":)" + Entry("3", "0,12") + "}", 8), HasSubstr("ends behind the file's end"));
  EXPECT_THAT(Why(R"({"a":)" + Entry("1", "4,8") + "}", 8), HasSubstr("leave a gap"));
  EXPECT_THAT(Why(R"({"a":)" + Entry("2", "0,8") + R"(,"b":)" + Entry("1", "4,8") + "}", 8),
              HasSubstr("overlap"));
  EXPECT_THAT(Why(R"({"a":)" + Entry("2", "8,0") + "}", 8), HasSubstr("in order"));
  EXPECT_THAT(Why(R"({"a":)" + Entry("1", "0,8") + "}", 8), HasSubstr("do not fit"));
  // 2^62 + 2 values are 8 bytes modulo 2^64.
  EXPECT_THAT(Why(R"({"a":)" + Entry("4611686018427387906", "0,8") + "}", 8), HasSubstr("do not fit"));
  EXPECT_THAT(Why(R"({"a":)" + Entry("-2", "0,8") + "}", 8), HasSubstr("no vector"));
  EXPECT_THAT(Why(R"({"a":)" + Entry("1,2", "0,8") + "}", 8), HasSubstr("no vector"));
  EXPECT_THAT(Why(R"({"a":)" + Entry("2", "0,8", "F16") + "}", 8), HasSubstr("F32"));
  EXPECT_THAT(Why(R"({"a":{"dtype":"F32","shape":[2],"offsets":[0,8]}})", 8), HasSubstr("lacks"));
  EXPECT_THAT(Why(R"({"a":)" + Entry("1", "0,4") + R"(,"a":)" + Entry("1", "4,8") + "}", 8),
              HasSubstr("twice"));
  EXPECT_THAT(Why(R"({"__metadata__":{"k":1}})", 0), HasSubstr("no text"));
  EXPECT_THAT(Why(R"({"__metadata__":[]})", 0), HasSubstr("no object"));
  EXPECT_THAT(Why("[]", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(Why(R"({"a":)", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(Why(std::string(1 << 20, '['), 0), HasSubstr("no JSON object"));
}

TEST(SafetensorsHeader, HasNoNameTwice) {
  EXPECT_FALSE(EncodeHeader({.tensors = {{"a", 1}, {"a", 1}}}).ok());
  EXPECT_FALSE(EncodeHeader({.tensors = {{"__metadata__", 1}}}).ok());
}

TEST(ManifestText, IsTakenOnlyAsItWasWritten) {
  const Manifest manifest{.generation = 3,
                          .job = "j",
                          .settings = R"({"x":[1,2.5e-07,"y"]})",
                          .rounds = 7,
                          .written = "now",
                          .parameters = {8, std::string(64, 'a')},
                          .optimizer = {16, std::string(64, 'b')},
                          .tensors = {{"w", 2, "adam:lr=1", {"exp_avg", "exp_avg_sq"}, 7, 1}}};
  const auto text = EncodeManifest(manifest);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*DecodeManifest(*text), manifest);
  EXPECT_FALSE(DecodeManifest(*text + "\n").ok());
  EXPECT_FALSE(DecodeManifest(" " + *text).ok());
  std::string other = *text;
  other.replace(other.find("\"rounds\": 7"), 11, "\"rounds\": 8");
  EXPECT_THAT(DecodeManifest(other).status().message(), HasSubstr("not as it was written"));
  for (const char* bad : {"", "{}", "[]", "7", "{\"format\":1}", "{\"format\":\"1\"}"})
    EXPECT_EQ(DecodeManifest(bad).status().code(), StatusCode::kDataLoss) << bad;
  EXPECT_FALSE(DecodeManifest(std::string(1 << 20, '[')).ok());
  std::string deep;
  for (int i = 0; i < 200'000; ++i) deep += "{\"a\":";
  EXPECT_FALSE(DecodeManifest(deep + "1" + std::string(200'000, '}')).ok());
}

TEST(ManifestText, OfALaterFormatIsNamed) {
  const auto later = DecodeManifest(R"({"format":2})");
  EXPECT_EQ(later.status().code(), StatusCode::kVersionMismatch);
  EXPECT_THAT(later.status().message(), HasSubstr("its format is 2"));
}

}  // namespace
}  // namespace longhaul::server::store
