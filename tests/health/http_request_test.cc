#include "health/http_request.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace longhaul::health {
namespace {

using State = HttpRequest::State;

State Take(HttpRequest* request, std::string_view text, size_t piece) {
  State state = State::kMore;
  while (!text.empty() && state == State::kMore) {
    state = request->Take(text.substr(0, piece));
    text.remove_prefix(std::min(piece, text.size()));
  }
  return state;
}

int RefusalOf(std::string_view text) {
  HttpRequest request;
  return request.Take(text) == State::kRefused ? request.refusal() : 0;
}

TEST(HttpRequest, IsWholeWithItsLastByteHoweverItIsCut) {
  const std::string text = "GET /metrics?name=x HTTP/1.1\r\nHost: a\r\nAccept: text/plain\r\n\r\n";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    HttpRequest request;
    EXPECT_EQ(Take(&request, text.substr(0, text.size() - 1), piece), State::kMore);
    EXPECT_EQ(request.Take("\n"), State::kWhole) << piece;
    EXPECT_EQ(request.path(), "/metrics");
    EXPECT_FALSE(request.is_head());
  }
}

TEST(HttpRequest, OfAPersonWithNcAndOfAProbe) {
  for (const char* text : {"GET /healthz HTTP/1.0\n\n", "GET /healthz HTTP/1.1\r\n\r\n",
                           "GET /healthz HTTP/1.1\r\nUser-Agent: kube-probe/1.30\r\n\r\nmore"}) {
    HttpRequest request;
    EXPECT_EQ(request.Take(text), State::kWhole) << text;
    EXPECT_EQ(request.path(), "/healthz");
  }
  HttpRequest head;
  EXPECT_EQ(head.Take("HEAD / HTTP/1.1\r\n\r\n"), State::kWhole);
  EXPECT_TRUE(head.is_head());
}

TEST(HttpRequest, WhatIsNoneIsRefusedByItsKind) {
  EXPECT_EQ(RefusalOf("POST /metrics HTTP/1.1\r\n\r\n"), 405);
  EXPECT_EQ(RefusalOf("PRI * HTTP/2.0\r\n\r\n"), 505);
  EXPECT_EQ(RefusalOf("GET /metrics HTTP/1.2\r\n\r\n"), 505);
  EXPECT_EQ(RefusalOf("GET /metrics\r\n\r\n"), 400);
  EXPECT_EQ(RefusalOf("GET metrics HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(RefusalOf("get /metrics HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(RefusalOf("GET  /metrics HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(RefusalOf("\r\n\r\n"), 400);
  EXPECT_EQ(RefusalOf("GET /metrics HTTP/1.1\r\nno colon\r\n\r\n"), 400);
  // A CR that ends no line (RFC 9112 §2.2): found by the fuzzer.
  EXPECT_EQ(RefusalOf("GET /met\rrics HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(RefusalOf("GET /met\trics HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(RefusalOf("GET /metrics HTTP/1.1\r\nHost: a\rb\r\n\r\n"), 400);
  EXPECT_EQ(RefusalOf("GET /metrics HTTP/1.1\r\n: none\r\n\r\n"), 400);
  EXPECT_EQ(RefusalOf("GET /metrics HTTP/1.1\r\na: \x01\r\n\r\n"), 400);
}

TEST(HttpRequest, AnotherProtocolIsRefusedWithItsFirstBytes) {
  EXPECT_EQ(RefusalOf(std::string_view("\x16\x03\x01\x02\x00\x01", 6)), 400);  // TLS
  EXPECT_EQ(RefusalOf(std::string_view("GET /\0", 6)), 400);
}

TEST(HttpRequest, HoldsNoMoreThanItsBound) {
  for (const size_t piece : {1u, 100u, 8192u, 100'000u}) {
    HttpRequest request;
    const std::string endless = "GET / HTTP/1.1\r\nCookie: " + std::string(100'000, 'x');
    EXPECT_EQ(Take(&request, endless, piece), State::kRefused) << piece;
    EXPECT_EQ(request.refusal(), 431) << piece;
  }
  std::string most = "GET / HTTP/1.1\r\na: ";
  most += std::string(HttpRequest::kMaxBytes - most.size() - 4, 'x') + "\r\n\r\n";
  HttpRequest fits;
  EXPECT_EQ(fits.Take(most), State::kWhole);
  HttpRequest does_not;
  most.insert(most.size() - 4, "x");
  EXPECT_EQ(does_not.Take(most), State::kRefused);
}

// --- Of a port that takes reports

int PostRefusalOf(std::string_view text) {
  HttpRequest request(HttpRequest::Takes::kPosts);
  return request.Take(text) == State::kRefused ? request.refusal() : 0;
}

TEST(HttpPost, SaysWhereItsBodyBeginsAndHowLongItIs) {
  const std::string head = "POST /validate?timeout=5s HTTP/1.1\r\nHost: a\r\ncOntent-lEngth: \t12 \r\n\r\n";
  for (size_t piece = 1; piece <= head.size() + 5; ++piece) {
    const std::string text = head + "{body";
    HttpRequest request(HttpRequest::Takes::kPosts);
    size_t at = 0;
    State state = State::kMore;
    for (; state == State::kMore && at < text.size(); at += piece)
      state = request.Take(text.substr(at, piece));
    ASSERT_EQ(state, State::kWhole) << piece;
    EXPECT_EQ(request.path(), "/validate");
    EXPECT_EQ(request.content_length(), 12u);
    EXPECT_FALSE(request.expects_continue());
    EXPECT_EQ(at - piece + request.taken(), head.size()) << "the body begins there, with pieces of " << piece;
  }
}

TEST(HttpPost, WhatFramesNoBodyIsRefused) {
  const std::string line = "POST / HTTP/1.1\r\n";
  EXPECT_EQ(PostRefusalOf(line + "Content-Length: 0\r\n\r\n"), 0);
  EXPECT_EQ(PostRefusalOf(line + "\r\n"), 411);
  EXPECT_EQ(PostRefusalOf(line + "Transfer-Encoding: chunked\r\n\r\n"), 411);
  EXPECT_EQ(PostRefusalOf(line + "Content-Length: 1\r\nTRANSFER-ENCODING: identity\r\n\r\n"), 411);
  EXPECT_EQ(PostRefusalOf(line + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n"), 400);
  for (const char* length : {"", "x", "-1", "+1", "1x", "0x1", "1, 1", "18446744073709551616"})
    EXPECT_EQ(PostRefusalOf(line + "Content-Length: " + length + "\r\n\r\n"), 400) << length;
  EXPECT_EQ(PostRefusalOf(line + "Content-Length: 1\r\nExpect: tea\r\n\r\n"), 400);
  EXPECT_EQ(PostRefusalOf("GET / HTTP/1.1\r\nContent-Length: 1\r\n\r\n"), 405);
  HttpRequest waits(HttpRequest::Takes::kPosts);
  EXPECT_EQ(waits.Take(line + "Content-Length: 1\r\nExpect: 100-Continue\r\n\r\n"), State::kWhole);
  EXPECT_TRUE(waits.expects_continue());
}

// Any bytes, cut anywhere: the same answer, and never more than one.
TEST(HttpRequest, RandomBytesHaveOneMeaning) {
  Random random(11);
  const std::string_view words[] = {"GET",  "POST", " ", "/metrics", "HTTP/1.1",
                                    "\r\n", "\n",   ":", "\x7f",     "a"};
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (uint64_t count = random.Below(14); count > 0; --count) text += words[random.Below(std::size(words))];
    HttpRequest whole, cut;
    const State state = text.empty() ? State::kMore : whole.Take(text);
    EXPECT_EQ(Take(&cut, text, 1 + random.Below(5)), state) << text;
    EXPECT_EQ(cut.path(), whole.path()) << text;
    EXPECT_TRUE(state != State::kWhole || whole.path().starts_with("/")) << text;
  }
}

}  // namespace
}  // namespace longhaul::health
