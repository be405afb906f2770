// What a server answers, on its way to a terminal.
#include "cli/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace longhaul::cli {
namespace {

using ::testing::HasSubstr;

std::string Repeated(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}
// An object in which `depth` - 1 arrays are within each other.
std::string Nested(size_t depth) {
  return "{\"a\":" + Repeated("[", depth - 1) + Repeated("]", depth - 1) + "}";
}

TEST(PrintableJson, IsIndentedAndTheSame) {
  const auto printed = PrintableJson(R"({"job":"resnet","members":[{"rank":0}]})");
  ASSERT_TRUE(printed.ok());
  EXPECT_EQ(*printed, "{\n  \"job\": \"resnet\",\n  \"members\": [\n    {\n      \"rank\": 0\n    }\n  ]\n}");
}

TEST(PrintableJson, WhatIsNoObjectIsRefused) {
  for (const char* text : {"", "[]", "3", "{", "{} {}", "{\"a\":1e999}", "{\"a\":\"\xff\"}"}) {
    const auto printed = PrintableJson(text);
    ASSERT_FALSE(printed.ok()) << text;
    EXPECT_THAT(printed.status().message(), HasSubstr("no JSON object"));
  }
}

TEST(PrintableJson, OfDeepNestingNothingIsPrinted) {
  EXPECT_TRUE(PrintableJson(Nested(kMaxJsonDepth)).ok());
  for (const std::string& text :
       {Nested(kMaxJsonDepth + 1), Nested(32'000), "{\"a\":" + Repeated("[", 65'000),
        Repeated("{\"a\":", 13'000) + "1" + Repeated("}", 13'000)}) {
    const auto printed = PrintableJson(text);
    ASSERT_FALSE(printed.ok());
    EXPECT_EQ(printed.status().code(), StatusCode::kProtocolViolation);
    EXPECT_THAT(printed.status().message(), HasSubstr("deeper than 16"));
  }
}

TEST(PrintableJson, ABroadAnswerStaysWithinItsBound) {
  const std::string text =
      "{\"a\":" + Repeated("[", 15) + "1" + Repeated(",1", 32'000) + Repeated("]", 15) + "}";
  const auto printed = PrintableJson(text);
  ASSERT_TRUE(printed.ok());
  EXPECT_LE(printed->size(), 40 * text.size());
}

TEST(PrintableJson, CommandsNothingToATerminal) {
  // ESC, DEL, CSI (U+009B), a right-to-left override, and a letter that is only foreign.
  const std::string bad = "\\u001b[2J\x7f\xc2\x9b\xe2\x80\xae\xc3\xa9";
  const std::string text = "{\"" + bad + "\":\"" + bad + "\"}";
  const auto printed = PrintableJson(text);
  ASSERT_TRUE(printed.ok());
  EXPECT_TRUE(std::ranges::all_of(*printed, [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }))
      << *printed;
  EXPECT_THAT(*printed, HasSubstr("\"\\u001b[2J\\u007f\\u009b\\u202e\\u00e9\": \"\\u001b[2J\\u007f"));
  EXPECT_EQ(nlohmann::json::parse(*printed), nlohmann::json::parse(text));
}

}  // namespace
}  // namespace longhaul::cli
