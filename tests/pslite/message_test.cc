#include "pslite/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"

namespace longhaul::pslite {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
T Again(const T& message) {
  const auto decoded = Decode(Encode(message));
  EXPECT_TRUE(decoded.ok()) << decoded.status().ToString();
  return std::get<T>(*decoded);
}

ps::Message Push() {
  ps::Message m;
  m.app_id = 3;
  m.customer_id = -1;
  m.sender = 9;
  m.recver = 8;
  m.timestamp = 77;
  m.head = -5;
  m.request = m.push = true;
  m.value_bytes = sizeof(double);
  m.keys = {1, 2, 3};
  m.vals = ps::SArray<char>(ps::SArray<double>{0.5, 1.5, 2.5, 3.5});
  m.lens = {1, 0, 3};
  return m;
}

Bytes Copy(ByteSpan bytes) {
  Bytes copy = Bytes::Of(bytes.size());
  if (!bytes.empty()) std::memcpy(copy.data.get(), bytes.data(), bytes.size());
  return copy;
}

TEST(PsMessage, ComesOutAsItWentIn) {
  const Address address = Address::V4(10, 0, 0, 7, 4711);
  const Hello hello = Again(Hello{Role::kServer, 4, 2, 1, address});
  EXPECT_EQ(hello.role, Role::kServer);
  EXPECT_EQ(hello.workers, 4u);
  EXPECT_EQ(hello.servers, 2u);
  EXPECT_EQ(hello.customer, 1u);
  EXPECT_EQ(hello.address, address);
  EXPECT_THAT(Again(Greeting{{9, 11}}).ids, ElementsAre(9u, 11u));
  const Welcome welcome = Again(Welcome{{{0, 9}, {1, 11}}, {address}});
  EXPECT_EQ(welcome.own.at(1).customer, 1u);
  EXPECT_EQ(welcome.own.at(1).id, 11u);
  EXPECT_THAT(welcome.servers, ElementsAre(address));
  EXPECT_EQ(Again(Barrier{9, 4, true}).group, 4u);
  EXPECT_TRUE(Again(Release{{9, 7, true}}).barrier.last);
  Again(Bye{});
}

TEST(PsMessage, OfARequestKeepsItsArraysAligned) {
  const ps::Message sent = Push();
  const auto decoded = Decode(*Encode(sent));
  ASSERT_TRUE(decoded.ok());
  const ps::Message& m = std::get<ps::Message>(*decoded);
  EXPECT_EQ(m.app_id, 3);
  EXPECT_EQ(m.customer_id, -1);
  EXPECT_EQ(m.sender, 9);
  EXPECT_EQ(m.recver, 8);
  EXPECT_EQ(m.timestamp, 77);
  EXPECT_EQ(m.head, -5);
  EXPECT_TRUE(m.request && m.push && !m.pull && !m.simple_app);
  EXPECT_THAT(std::vector<ps::Key>(m.keys.begin(), m.keys.end()), ElementsAre(1u, 2u, 3u));
  const ps::SArray<double> values(m.vals);
  EXPECT_THAT(std::vector<double>(values.begin(), values.end()), ElementsAre(0.5, 1.5, 2.5, 3.5));
  EXPECT_THAT(std::vector<int>(m.lens.begin(), m.lens.end()), ElementsAre(1, 0, 3));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(m.vals.data()) % 16, 0u);
}

TEST(PsMessage, ThatIsCutOrLongerIsNone) {
  for (const Bytes& whole : {*Encode(Push()), Encode(Welcome{{{0, 9}}, {Address()}}), Encode(Hello{})}) {
    for (size_t size = 0; size < whole.size; ++size) {
      EXPECT_EQ(Decode(Copy(whole.span().first(size))).status().code(), StatusCode::kProtocolViolation)
          << size;
    }
    std::vector<uint8_t> longer(whole.span().begin(), whole.span().end());
    longer.push_back(0);
    EXPECT_FALSE(Decode(Copy(longer)).ok());
  }
}

// Whatever is changed: arrays lie inside the bytes, and values are whole.
TEST(PsMessage, ThatIsDamagedNeverReachesOutside) {
  Random random(7);
  const Bytes whole = *Encode(Push());
  int decoded_at_all = 0;
  for (int i = 0; i < 100'000; ++i) {
    const Bytes damaged = Copy(whole.span());
    for (uint64_t flips = 1 + random.Next() % 3; flips > 0; --flips)
      damaged.data[random.Next() % 64] = static_cast<uint8_t>(random.Next());
    const auto decoded = Decode(damaged);
    if (!decoded.ok() || !std::holds_alternative<ps::Message>(*decoded)) continue;
    ++decoded_at_all;
    const ps::Message& m = std::get<ps::Message>(*decoded);
    const auto inside = [&](const void* data, size_t bytes) {
      const auto* const at = static_cast<const uint8_t*>(data);
      return at >= damaged.data.get() && at + bytes <= damaged.data.get() + damaged.size;
    };
    ASSERT_TRUE(inside(m.keys.data(), m.keys.size() * sizeof(ps::Key)));
    ASSERT_TRUE(inside(m.vals.data(), m.vals.size()));
    ASSERT_TRUE(inside(m.lens.data(), m.lens.size() * sizeof(int)));
    ASSERT_GT(m.value_bytes, 0u);
    ASSERT_EQ(m.vals.size() % m.value_bytes, 0u);
  }
  EXPECT_GT(decoded_at_all, 1000);
}

TEST(PsMessage, BeyondItsBoundIsRefused) {
  ps::Message m = Push();
  m.lens.clear();
  char byte = 0;
  m.vals.reset(&byte, kMaxMessageBytes, [](char*) {});  // never read
  const auto encoded = Encode(m);
  EXPECT_EQ(encoded.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(encoded.status().message(), HasSubstr("1073741824"));
}

TEST(PsMessage, NamesNodes) {
  EXPECT_EQ(NameOf(uint32_t{ps::kScheduler}), "scheduler");
  EXPECT_EQ(NameOf(uint32_t{10}), "server 1");
  EXPECT_EQ(NameOf(uint32_t{9}), "worker 0");
  EXPECT_TRUE(InGroup(9, ps::kWorkerGroup) && !InGroup(9, ps::kServerGroup) && InGroup(8, 6) &&
              InGroup(1, 5));
}

}  // namespace
}  // namespace longhaul::pslite
