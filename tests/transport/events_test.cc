// What the owner of an endpoint polls: order, how long spans live, what a request changes, and the bound.
#include "transport/core/connection/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/reference_coder.h"
#include "tests/transport/application.h"
#include "transport/core/connection/event_queue.h"
#include "transport/core/connection/packet_builder.h"
#include "transport/core/endpoint/endpoint.h"
#include "transport/core/security/integrity_tag.h"

namespace longhaul::transport {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using wire::ReliabilityClass;
using Bytes = std::vector<uint8_t>;

constexpr uint16_t kSymbol = 64;
constexpr WindowKey kWindow{1, 0};

// "Chunk 3", "WindowState": an event as the tests name it.
std::string Name(const Event& event) {
  static const char* const kNames[] = {"Accepted",     "Connected",      "ControlBytes", "ControlWritable",
                                       "WindowOpened", "Chunk",          "WindowState",  "WindowClosed",
                                       "Closed",       "HandshakeFailed"};
  const std::string name = kNames[event.index()];
  const auto* chunk = std::get_if<event::Chunk>(&event);
  return chunk != nullptr ? name + " " + std::to_string(chunk->sequence) : name;
}

bool Contains(const Bytes& datagram, const Bytes& part) {
  return std::search(datagram.begin(), datagram.end(), part.begin(), part.end()) != datagram.end();
}

// A client and a server; every datagram is handed over by the test, and every event polled by it.
struct Events : testing::Test {
  explicit Events(bool wary = false) {
    EndpointOptions options;
    options.coder = &coder;
    client.emplace(options, Random(1));
    options.accepts = true;
    options.connection.wary = wary;
    server.emplace(options, Random(2));
    connection = client->Connect(now, kServer);
    Exchange();
    EXPECT_NE(accepted, nullptr);
    seen.clear();
  }

  std::vector<Bytes> Take(Endpoint& from) { return TakeDatagrams(from, now); }
  void Give(Endpoint& to, Bytes datagram) {
    to.HandleDatagram(now, &to == &*server ? kClient : kServer, datagram, {});
  }
  // The events that wait at the server, by name; `on_event` may act on each.
  using OnEvent = std::function<void(Connection&, const Event&)>;
  std::vector<std::string> Poll(const OnEvent& on_event = {}) {
    std::vector<std::string> names;
    while (const auto happened = server->PollEvent()) {
      names.push_back(Name(happened->event));
      if (std::holds_alternative<event::Accepted>(happened->event)) accepted = happened->connection;
      if (on_event) on_event(*happened->connection, happened->event);
    }
    return names;
  }
  void PollClient() {
    while (const auto happened = client->PollEvent()) {
      client_seen.push_back(Name(happened->event));
      const auto* closed = std::get_if<event::WindowClosed>(&happened->event);
      if (closed != nullptr) receipt = *closed->receipt;
    }
  }
  // Until neither side sends any more; 10 ms for each turn.
  void Exchange(const OnEvent& on_event = {}) {
    for (bool quiet = false; !quiet; now += std::chrono::milliseconds(10)) {
      quiet = true;
      for (Bytes& datagram : Take(*client)) {
        quiet = false;
        Give(*server, datagram);
        for (std::string& name : Poll(on_event)) seen.push_back(std::move(name));
      }
      for (Bytes& datagram : Take(*server)) {
        quiet = false;
        Give(*client, datagram);
        PollClient();
      }
    }
  }
  void OpenWindow(uint32_t high, uint32_t low, uint8_t k = 8) {
    const WindowOptions options{.key = kWindow,
                                .high_count = high,
                                .low_count = low,
                                .symbol_bytes = kSymbol,
                                .fec_k = k,
                                .fec_depth = 1,
                                .metadata = {}};
    ASSERT_TRUE(connection->OpenWindow(options).ok());
  }
  static Bytes Body(uint32_t i) { return Bytes(kSymbol, static_cast<uint8_t>(i + 1)); }
  void Submit(ReliabilityClass reliability, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      bodies.push_back(Body(i));
      ASSERT_TRUE(connection->SubmitChunk(kWindow, reliability, {}, bodies.back()).ok());
    }
  }
  // A packet from the client that its connection knows nothing of.
  Bytes Packet(const std::vector<wire::Frame>& frames, size_t size = 1400) {
    Bytes bytes(size);
    PacketBuilder builder(bytes);
    builder.StartShort(accepted->local_id(), next_number++);
    for (const wire::Frame& frame : frames) EXPECT_TRUE(builder.Add(frame));
    IntegrityTag tag;
    bytes.resize(builder.Seal(tag));
    return bytes;
  }
  // A chunk, or the repair symbol of the one block, as a packet of its own.
  Bytes Data(uint32_t index, const Bytes& body, bool repair = false) {
    Bytes bytes(1400);
    PacketBuilder builder(bytes);
    builder.StartShort(accepted->local_id(), next_number++);
    WindowTx::Item item;
    item.header = {.window_id = kWindow.id, .index = index, .reliability = ReliabilityClass::kHigh};
    item.header.repair = repair;
    item.first = body;
    builder.SetChunk(item, 0);
    IntegrityTag tag;
    bytes.resize(builder.Seal(tag));
    return bytes;
  }
  // Of a block of `sources` bodies.
  Bytes Repair(uint32_t sources) {
    std::vector<Bytes> source;
    for (uint32_t i = 0; i < 8; ++i) source.push_back(i < sources ? Body(i) : Bytes(kSymbol));
    Bytes repair(kSymbol);
    const std::vector<ByteSpan> in(source.begin(), source.end());
    const std::vector<MutableByteSpan> out = {repair};
    coder.Encode(8, kSymbol, in, out);
    return repair;
  }
  static wire::WindowOpenFrame Open(uint32_t id, uint32_t high, uint32_t low) {
    return {.window_id = id,
            .generation = 0,
            .high_count = high,
            .low_count = low,
            .symbol_bytes = kSymbol,
            .fec_k = 8,
            .fec_depth = 1,
            .metadata = {}};
  }

  const Address kClient = Address::V4(10, 0, 0, 1, 40000), kServer = Address::V4(10, 0, 0, 2, 7700);
  codec::ReferenceCoder coder;
  Instant now = Instant::FromNanoseconds(1'000'000'000);
  std::optional<Endpoint> client, server;
  Connection* connection = nullptr;
  Connection* accepted = nullptr;
  std::deque<Bytes> bodies;
  std::vector<std::string> seen;         // at the server, by Exchange
  std::vector<std::string> client_seen;  // at the client
  std::optional<WindowReceipt> receipt;  // of the client's window
  wire::PacketNumber next_number = 1000;
};

struct WaryEvents : Events {
  WaryEvents() : Events(true) {}
};

TEST_F(Events, ComeInTheOrderOfTheConnectionsLife) {
  EXPECT_THAT(client_seen, ElementsAre("Connected"));
  OpenWindow(2, 1, 0);
  Submit(ReliabilityClass::kHigh, 2);
  Submit(ReliabilityClass::kLow, 1);
  Exchange();
  EXPECT_THAT(seen, ElementsAre("WindowOpened", "Chunk 0", "WindowState", "Chunk 1", "WindowState", "Chunk 0",
                                "WindowState", "WindowState"))
      << "the last one: the sender says that it is finished";
  seen.clear();
  accepted->CloseWindow(kWindow, wire::CloseReason::kComplete);
  ASSERT_TRUE(connection->SendControl(Bytes(3, 1)).ok());
  Exchange();
  EXPECT_THAT(client_seen, ElementsAre("Connected", "WindowClosed"));
  EXPECT_THAT(seen, ElementsAre("ControlBytes"));
  connection->Close(Status::Ok());
  Exchange();
  EXPECT_THAT(seen, ElementsAre("ControlBytes", "Closed"));
}

// The OPEN comes last: what had overtaken it follows it, then the window's state, once.
TEST_F(Events, ChunksThatOvertookTheirOpenFollowIt) {
  for (const uint32_t index : {2u, 0u, 1u}) {
    Give(*server, Data(index, Body(index)));
    EXPECT_THAT(Poll(), IsEmpty());
  }
  Give(*server, Packet({Open(1, 8, 0)}));
  EXPECT_THAT(Poll(), ElementsAre("WindowOpened", "Chunk 2", "Chunk 0", "Chunk 1", "WindowState"));
}

// A block is rebuilt from chunks that had overtaken the OPEN, and the window is closed at the last of them:
// all the same every byte can be read until the next Handle*.
TEST_F(Events, SpansLiveUntilTheNextHandle) {
  for (uint32_t i = 0; i < 6; ++i) Give(*server, Data(i, Body(i)));
  Give(*server, Data(wire::DataHeader::RepairIndex(0, 0), Repair(7), true));
  EXPECT_THAT(Poll(), IsEmpty());
  std::vector<event::Chunk> chunks;
  Give(*server, Packet({Open(1, 7, 0)}));
  Poll([&](Connection& c, const Event& event) {
    const auto* chunk = std::get_if<event::Chunk>(&event);
    if (chunk == nullptr) return;
    chunks.push_back(*chunk);
    if (chunks.size() == 7) c.CloseWindow(kWindow, wire::CloseReason::kComplete);
  });
  ASSERT_THAT(chunks, SizeIs(7));
  EXPECT_TRUE(chunks.back().repaired);
  for (const event::Chunk& chunk : chunks) {
    EXPECT_EQ(Bytes(chunk.bytes.begin(), chunk.bytes.end()), Body(chunk.sequence)) << chunk.sequence;
  }
}

TEST_F(Events, NothingOfAWindowFollowsItsClose) {
  Give(*server, Packet({Open(1, 7, 0)}));
  EXPECT_THAT(Poll(), ElementsAre("WindowOpened"));
  for (uint32_t i = 0; i < 6; ++i) {
    Give(*server, Data(i, Body(i)));
    Poll();
  }
  Give(*server, Data(wire::DataHeader::RepairIndex(0, 0), Repair(7), true));
  EXPECT_THAT(Poll([](Connection& c, const Event&) { c.CloseWindow(kWindow, wire::CloseReason::kHard); }),
              ElementsAre("Chunk 6"));
}

TEST_F(Events, AWindowIsRefusedByClosingIt) {
  OpenWindow(2, 1, 0);
  Submit(ReliabilityClass::kHigh, 2);
  Exchange([](Connection& c, const Event& event) {
    if (std::holds_alternative<event::WindowOpened>(event))
      c.CloseWindow(kWindow, wire::CloseReason::kExcluded);
  });
  EXPECT_THAT(seen, ElementsAre("WindowOpened"));
  ASSERT_TRUE(receipt);
  EXPECT_FALSE(receipt->HighTaken(0));
  EXPECT_EQ(accepted->stats().chunk_bytes_received, 0u);
}

TEST_F(Events, AChunkThatIsRefusedAfterItsRepairIsNotInTheReceipt) {
  OpenWindow(7, 0);
  Submit(ReliabilityClass::kHigh, 7);
  std::vector<Bytes> datagrams = Take(*client);
  bool dropped = false;
  const auto handle = [&](Connection& c, const Event& event) {
    const auto* chunk = std::get_if<event::Chunk>(&event);
    if (chunk != nullptr && chunk->repaired) c.RefuseChunk(kWindow, chunk->reliability, chunk->sequence);
    const auto* state = std::get_if<event::WindowState>(&event);
    if (state != nullptr && state->window.complete) c.CloseWindow(kWindow, wire::CloseReason::kComplete);
  };
  for (Bytes& datagram : datagrams) {
    const bool drop = !dropped && Contains(datagram, Body(4));
    dropped = dropped || drop;
    if (drop) continue;
    Give(*server, datagram);
    Poll(handle);
  }
  ASSERT_TRUE(dropped);
  Give(*server, Data(wire::DataHeader::RepairIndex(0, 0), Repair(7), true));
  Poll(handle);
  EXPECT_EQ(accepted->stats().chunks_refused, 1u);
  Bytes closed;  // the bitmap of the CLOSE
  for (const Bytes& datagram : Take(*server)) {
    ByteReader reader(ByteSpan(datagram).first(datagram.size() - wire::kTagBytes));
    if (!wire::DecodeShortHeader(reader)) continue;
    while (reader.ok() && !reader.AtEnd()) {
      const Result<wire::Frame> frame = wire::DecodeFrame(reader);
      if (!frame.ok()) break;
      const auto* close = std::get_if<wire::WindowCloseFrame>(&*frame);
      if (close != nullptr) closed.assign(close->bitmap.begin(), close->bitmap.end());
    }
  }
  EXPECT_EQ(closed, Bytes{0x6f}) << "all seven but 4";
}

// Control data and the peer's end in one datagram: both come, and what the owner says between them is too
// late but harmless.
TEST_F(Events, WhatCameBeforeTheEndInTheSameDatagramIsPolledBeforeIt) {
  const Bytes bytes(10, 7);
  Give(*server, Packet({wire::ControlFrame{0, bytes}, wire::CloseFrame{StatusCode::kAborted, "enough"}}));
  Status answered;
  EXPECT_THAT(Poll([&](Connection& c, const Event& event) {
                if (!std::holds_alternative<event::ControlBytes>(event)) return;
                answered = c.SendControl(bytes);
                c.Close(Status(StatusCode::kCancelled, "mine"));
              }),
              ElementsAre("ControlBytes", "Closed"));
  EXPECT_EQ(answered.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(server->connection_count(), 0u);
  // Nothing about it comes any more.
  Give(*server, Packet({wire::ControlFrame{10, bytes}}));
  EXPECT_THAT(Poll(), IsEmpty());
}

TEST_F(Events, WhoEndsAConnectionHearsOnlyThatItIsOver) {
  const Bytes bytes(10, 7);
  Give(*server, Packet({wire::ControlFrame{0, bytes}, Open(1, 2, 0), Open(2, 2, 0)}));
  EXPECT_THAT(Poll([](Connection& c, const Event&) { c.Close(Status(StatusCode::kAborted, "enough")); }),
              ElementsAre("ControlBytes"));
  Exchange();
  EXPECT_THAT(seen, ElementsAre("Closed"));
  EXPECT_THAT(client_seen, ElementsAre("Connected", "Closed"));
}

TEST_F(Events, OfAWindowThatIsGivenUpNoCloseComes) {
  OpenWindow(1, 0, 0);
  Submit(ReliabilityClass::kHigh, 1);
  Exchange();
  accepted->CloseWindow(kWindow, wire::CloseReason::kComplete);
  for (Bytes& datagram : Take(*server)) Give(*client, datagram);
  connection->CancelWindow(kWindow);
  PollClient();
  EXPECT_THAT(client_seen, ElementsAre("Connected"));
}

// --- The bound ---

TEST_F(WaryEvents, APeerThatCausesTooManyAtOnceIsCutOff) {
  std::vector<wire::Frame> opens;
  for (uint32_t id = 1; id <= EventQueue::kMaxEntries + 1; ++id) opens.push_back(Open(id, 1, 0));
  Give(*server, Packet(opens, 65'000));
  EXPECT_THAT(Poll(), IsEmpty()) << "none of it";
  EXPECT_EQ(accepted->state(), Connection::State::kClosing);
  EXPECT_EQ(accepted->stats().events_dropped, 1u);
  Exchange();
  EXPECT_THAT(seen, ElementsAre("Closed"));
}

TEST_F(WaryEvents, AsManyAsTheBoundArePolled) {
  std::vector<wire::Frame> opens;
  for (uint32_t id = 1; id <= EventQueue::kMaxEntries; ++id) opens.push_back(Open(id, 1, 0));
  Give(*server, Packet(opens, 65'000));
  EXPECT_THAT(Poll(), AllOf(SizeIs(EventQueue::kMaxEntries), Each("WindowOpened")));
  EXPECT_EQ(accepted->state(), Connection::State::kConnected);
}

TEST(EventQueue, TheStateOfAWindowComesOnceAndAfterItsChunks) {
  std::vector<ConnectionImpl*> ready;
  EventQueue queue(nullptr, &ready);
  queue.PushState({1, 0});
  queue.PushState({2, 0});
  queue.Push(EventQueue::Kind::kChunks, {1, 0});
  queue.PushState({1, 0});
  queue.PushState({1, 0});
  std::vector<std::pair<EventQueue::Kind, uint32_t>> order;
  using Kind = EventQueue::Kind;
  for (const EventQueue::Entry& entry : queue.waiting()) {
    if (entry.kind != Kind::kNothing) order.emplace_back(entry.kind, entry.key.id);
  }
  EXPECT_THAT(order, ElementsAre(std::pair(Kind::kWindowState, 2u), std::pair(Kind::kChunks, 1u),
                                 std::pair(Kind::kWindowState, 1u)));
}

TEST(EventQueue, TheEndFitsWhateverElseDoesNot) {
  std::vector<ConnectionImpl*> ready;
  EventQueue queue(nullptr, &ready);
  for (size_t i = 0; i <= EventQueue::kMaxEntries; ++i) queue.Push(EventQueue::Kind::kControlWritable);
  EXPECT_EQ(queue.dropped(), 1u);
  queue.Push(EventQueue::Kind::kClosed);
  EXPECT_EQ(queue.dropped(), 1u);
}

}  // namespace
}  // namespace longhaul::transport
