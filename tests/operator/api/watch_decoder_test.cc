// The bytes of a watch, in any pieces, as events; every line that is none ends it by name.
#include "operator/api/core/watch_decoder.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/random.h"

namespace longhaul::kube::api {
namespace {

std::string Line(const std::string& type, const std::string& name, const std::string& version) {
  return R"({"type":")" + type + R"(","object":{"metadata":{"name":")" + name + R"(","resourceVersion":")" +
         version + "\"}}}\n";
}

std::vector<std::string> NamesOf(WatchDecoder* decoder) {
  std::vector<std::string> names;
  while (auto event = decoder->Next()) names.emplace_back(TextAt(event->object, {"metadata", "name"}));
  return names;
}

TEST(WatchDecoder, EventsComeInTheirOrderWithTheirVersions) {
  WatchDecoder decoder;
  ASSERT_TRUE(
      decoder.Take(Line("ADDED", "a", "5") + Line("MODIFIED", "a", "6") + Line("DELETED", "a", "7")).ok());
  const WatchEvent::Type types[] = {WatchEvent::Type::kAdded, WatchEvent::Type::kModified,
                                    WatchEvent::Type::kDeleted};
  for (int i = 0; i < 3; ++i) {
    const auto event = decoder.Next();
    ASSERT_TRUE(event.has_value());
    EXPECT_EQ(event->type, types[i]);
    EXPECT_EQ(event->resource_version, std::to_string(5 + i));
  }
  EXPECT_FALSE(decoder.Next().has_value());
  EXPECT_TRUE(decoder.status().ok());
}

TEST(WatchDecoder, PiecesOfAnySizeChangeNothing) {
  std::string text;
  for (int i = 0; i < 50; ++i)
    text += Line("ADDED", "pod-" + std::to_string(i), std::to_string(i + 1)) + (i % 7 == 0 ? "\r\n" : "");
  WatchDecoder whole;
  ASSERT_TRUE(whole.Take(text).ok());
  const std::vector<std::string> wanted = NamesOf(&whole);
  ASSERT_EQ(wanted.size(), 50u);
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    WatchDecoder decoder;
    std::vector<std::string> names;
    for (size_t at = 0; at < text.size();) {
      const size_t piece = 1 + random.Below(seed % 2 == 0 ? 7 : 300);
      ASSERT_TRUE(decoder.Take(std::string_view(text).substr(at, piece)).ok());
      at += piece;
      for (std::string& name : NamesOf(&decoder)) names.push_back(std::move(name));
    }
    EXPECT_EQ(names, wanted);
  }
}

TEST(WatchDecoder, ACutInsideALineIsSeen) {
  WatchDecoder decoder;
  const std::string line = Line("ADDED", "a", "5");
  ASSERT_TRUE(decoder.Take(line + line.substr(0, 20)).ok());
  EXPECT_EQ(NamesOf(&decoder), std::vector<std::string>{"a"});
  EXPECT_TRUE(decoder.InsideLine());
  ASSERT_TRUE(decoder.Take(line.substr(20)).ok());
  EXPECT_EQ(NamesOf(&decoder), std::vector<std::string>{"a"});
  EXPECT_FALSE(decoder.InsideLine());
}

TEST(WatchDecoder, ABookmarkSaysOnlyItsVersion) {
  WatchDecoder decoder;
  ASSERT_TRUE(decoder
                  .Take(R"({"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"900"}}})"
                        "\n")
                  .ok());
  const auto event = decoder.Next();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->type, WatchEvent::Type::kBookmark);
  EXPECT_EQ(event->resource_version, "900");
}

TEST(WatchDecoder, AnErrorCarriesItsStatus) {
  WatchDecoder decoder;
  ASSERT_TRUE(
      decoder
          .Take(
              R"({"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}})"
              "\n")
          .ok());
  const auto event = decoder.Next();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->type, WatchEvent::Type::kError);
  const ApiResult result = ClassifyStatus(410, event->object);
  EXPECT_EQ(result.code, ApiCode::kGone);
  EXPECT_EQ(result.message, "too old");
}

TEST(WatchDecoder, ALineAboveTheBoundEndsItAndKeepsNothing) {
  WatchDecoder decoder(1000);
  EXPECT_TRUE(decoder.Take(std::string(1000, 'x')).ok());
  EXPECT_EQ(decoder.Take("x").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(decoder.buffered(), 0u);
  EXPECT_EQ(decoder.Take(Line("ADDED", "a", "1")).code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(decoder.Next().has_value());
}

TEST(WatchDecoder, ALongLineBehindAShortOneEndsItToo) {
  const std::string longer = Line("ADDED", std::string(300, 'b'), "2");
  for (const std::string& text :
       {longer, longer.substr(0, longer.size() - 1)}) {  // with its end, and without
    WatchDecoder decoder(200);
    ASSERT_TRUE(decoder.Take(Line("ADDED", "a", "1") + text).ok());
    EXPECT_EQ(NamesOf(&decoder), std::vector<std::string>{"a"});
    EXPECT_EQ(decoder.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(decoder.status().message().find("line 2"), std::string::npos);
    EXPECT_EQ(decoder.buffered(), 0u);
  }
}

TEST(WatchDecoder, WhatIsNoEventEndsItWithItsLine) {
  const std::string bad[] = {
      "garbage",
      "[]",
      "{}",
      R"({"type":"ADDED"})",
      R"({"type":"ADDED","object":7})",
      R"({"type":"OTHER","object":{"metadata":{"resourceVersion":"1"}}})",
      R"({"type":"ADDED","object":{"metadata":{"name":"a"}}})",
      R"({"type":"ADDED","object":{"metadata":{"resourceVersion":5}}})",
      R"({"type":"BOOKMARK","object":{}})",
      R"({"type":"ADDED","object":)" + std::string(200, '[') + std::string(200, ']') + "}"};
  for (const std::string& line : bad) {
    SCOPED_TRACE(line);
    WatchDecoder decoder;
    ASSERT_TRUE(decoder.Take(Line("ADDED", "a", "1") + line + "\n" + Line("ADDED", "c", "3")).ok());
    EXPECT_EQ(NamesOf(&decoder), std::vector<std::string>{"a"});
    EXPECT_EQ(decoder.status().code(), StatusCode::kProtocolViolation);
    EXPECT_NE(decoder.status().message().find("line 2"), std::string::npos) << decoder.status().message();
    EXPECT_FALSE(decoder.Take("x").ok());
  }
}

TEST(WatchDecoder, WhatIsKeptIsALineAndAPiece) {
  WatchDecoder decoder(400);
  size_t most = 0;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(decoder.Take(Line("ADDED", "pod", std::to_string(i + 1))).ok());
    while (decoder.Next()) {
    }
    most = std::max(most, decoder.buffered());
  }
  EXPECT_LE(most, 500u);
}

}  // namespace
}  // namespace longhaul::kube::api
