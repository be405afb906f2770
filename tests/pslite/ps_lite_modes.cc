// Programs of ps-lite for tests/python/test_ps_lite.py, a mode each: `ps_lite_modes MODE` by scheduler,
// servers and workers. Prints "done ROLE RANK", or "error: ..." and ends with 3 when the job fails.

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "ps/ps.h"

using namespace ps;

namespace {

using Values = std::vector<float>;

// Keys in the ranges of all servers.
std::vector<Key> Spread(size_t count) {
  std::vector<Key> keys(count);
  for (size_t i = 0; i < count; ++i) keys[i] = kMaxKey / count * i;
  keys.back() = kMaxKey;
  return keys;
}

void Serve(int app, const KVServer<float>::ReqHandle& handle) {
  if (!IsServer()) return;
  auto* const server = new KVServer<float>(app);
  server->set_request_handle(handle);
  RegisterExitCallback([server] { delete server; });
}

void SleepMs(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Any number of values for a key; what is pushed replaces.
struct Table {
  void operator()(const KVMeta& meta, const KVPairs<float>& pairs, KVServer<float>* server) {
    const float* next = pairs.vals.data();
    for (size_t i = 0; meta.push && i < pairs.keys.size(); ++i) {
      const auto length = static_cast<size_t>(pairs.lens[i]);
      rows[pairs.keys[i]] = Values(next, next + length);
      next += length;
    }
    KVPairs<float> answer;
    if (meta.pull) {
      answer.keys = pairs.keys;
      for (const Key key : pairs.keys) {
        const Values& row = rows[key];
        answer.lens.push_back(static_cast<int>(row.size()));
        answer.vals.append(SArray<float>(row));
      }
    }
    server->Response(meta, answer);
  }
  std::map<Key, Values> rows;
};

void Lens() {
  Serve(0, Table());
  if (!IsWorker()) return;
  KVWorker<float> kv(0, 0);
  const std::vector<Key> keys = Spread(300);
  std::vector<int> lens(keys.size());
  for (size_t i = 0; i < lens.size(); ++i) lens[i] = static_cast<int>(i % 5);
  Values values(static_cast<size_t>(std::accumulate(lens.begin(), lens.end(), 0)));
  std::iota(values.begin(), values.end(), 1.0f);
  if (MyRank() == 0) kv.Wait(kv.Push(keys, values, lens));
  Postoffice::Get()->Barrier(0, kWorkerGroup);
  Values got;
  std::vector<int> got_lens;
  kv.Wait(kv.Pull(keys, &got, &got_lens));
  CHECK(got == values);
  CHECK(got_lens == lens);
  std::vector<int> room(keys.size());
  Values again(values.size());
  kv.Wait(kv.Pull(keys, &again, &room));
  CHECK(again == values && room == lens);
  Postoffice::Get()->Barrier(0, kWorkerGroup);
  if (MyRank() != 0) return;
  const Values pushed(values.size(), 7.0f);
  Values outs;
  kv.Wait(kv.PushPull(keys, pushed, &outs, &lens));
  CHECK(outs == pushed);
}

void Calls() {
  Serve(0, KVServerDefaultHandle<float>());
  if (!IsWorker()) return;
  KVWorker<float> kv(0, 0);
  const std::vector<Key> keys = Spread(40);
  const Values ones(keys.size(), 1.0f);

  int called = 0;
  kv.Wait(kv.Push(keys, ones, {}, 0, [&] {
    SleepMs(50);
    called = 1;
  }));
  CHECK_EQ(called, 1) << "Wait is over before the callback";

  // A callback asks for the next one.
  std::mutex mutex;
  std::condition_variable changed;
  int left = 30;
  const std::function<void()> next = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    if (--left > 0) kv.Push(keys, ones, {}, 0, next);
    changed.notify_one();
  };
  kv.Push(keys, ones, {}, 0, next);
  {
    std::unique_lock<std::mutex> lock(mutex);
    CHECK(changed.wait_for(lock, std::chrono::seconds(30), [&] { return left == 0; }));
  }
  Postoffice::Get()->Barrier(0, kWorkerGroup);
  const float sum = 31.0f * static_cast<float>(NumWorkers());

  Values got;
  float seen = 0;
  kv.Wait(kv.Pull(keys, &got, nullptr, 0, [&] { seen = got.at(3); }));
  CHECK_EQ(seen, sum) << "the callback is before the values";
  SArray<float> shared;
  kv.Wait(kv.ZPull(SArray<Key>(keys), &shared));
  CHECK_EQ(shared.size(), keys.size());
  CHECK_EQ(shared.back(), sum);
  Postoffice::Get()->Barrier(0, kWorkerGroup);
  if (MyRank() == 0) {
    Values outs;
    kv.Wait(kv.PushPull(keys, ones, &outs));
    CHECK_EQ(outs.front(), sum + 1);
    SArray<float> zouts;
    kv.Wait(kv.ZPushPull(SArray<Key>(keys), SArray<float>(ones), &zouts));
    CHECK_EQ(zouts[5], sum + 2);
    kv.Wait(kv.ZPush(SArray<Key>(keys), SArray<float>(ones)));
  }
  // Without keys there is nothing to ask for; with those of one server, only that one is asked.
  called = 0;
  kv.Wait(kv.Push({}, {}, {}, 0, [&] { ++called; }));
  CHECK_EQ(called, 1);
  Values none;
  kv.Wait(kv.Pull({}, &none));
  CHECK(none.empty());
  Values one;
  kv.Wait(kv.Pull({keys[0]}, &one));
  CHECK_EQ(one.size(), size_t{1});
}

// Every worker numbers its requests.
void Order() {
  auto* const expected = new std::map<int, int>();
  Serve(0, [expected](const KVMeta& meta, const KVPairs<float>&, KVServer<float>* server) {
    CHECK_EQ(meta.cmd, (*expected)[meta.sender]++) << "out of order";
    server->Response(meta);
  });
  if (!IsWorker()) return;
  KVWorker<float> kv(0, 0);
  const std::vector<Key> keys = Spread(10);
  std::vector<int> pushes;
  for (int i = 0; i < 400; ++i) pushes.push_back(kv.Push(keys, Values(10), {}, i));
  for (const int push : pushes) kv.Wait(push);
}

// Synchronous: a server answers when all workers have pushed.
void Held() {
  struct Round {
    std::vector<KVMeta> waiting;
    std::map<Key, float> sums;
  };
  auto* const round = new Round();
  Serve(0, [round](const KVMeta& meta, const KVPairs<float>& pairs, KVServer<float>* server) {
    KVPairs<float> answer;
    if (meta.pull) {
      answer.keys = pairs.keys;
      for (const Key key : pairs.keys) answer.vals.push_back(round->sums[key]);
      return server->Response(meta, answer);
    }
    for (size_t i = 0; i < pairs.keys.size(); ++i) round->sums[pairs.keys[i]] += pairs.vals[i];
    round->waiting.push_back(meta);
    if (static_cast<int>(round->waiting.size()) < NumWorkers()) return;
    for (const KVMeta& each : round->waiting) server->Response(each);
    round->waiting.clear();
  });
  if (!IsWorker()) return;
  KVWorker<float> kv(0, 0);
  const std::vector<Key> keys = Spread(20);
  for (int i = 1; i <= 20; ++i) {
    kv.Wait(kv.Push(keys, Values(keys.size(), 1.0f)));
    Values sums;
    kv.Wait(kv.Pull(keys, &sums));
    CHECK_GE(sums[7], static_cast<float>(i * NumWorkers()));
  }
}

void Simple() {
  SimpleApp app(5);
  int asked = 0;
  app.set_request_handle([&asked](const SimpleData& request, SimpleApp* own) {
    CHECK_EQ(request.body, "question " + std::to_string(asked));
    CHECK_EQ(request.sender, kScheduler);
    ++asked;
    own->Response(request, request.body + "!");
  });
  std::map<int, std::string> answers;
  app.set_response_handle(
      [&](const SimpleData& answer, SimpleApp*) { answers[answer.sender] += answer.body; });
  Postoffice::Get()->Barrier(0, 7);
  if (IsScheduler()) {
    for (int i = 0; i < 20; ++i) app.Wait(app.Request(i, "question " + std::to_string(i), 7));
    CHECK_EQ(answers.size(), size_t(1 + NumWorkers() + NumServers()));
    CHECK_EQ(answers[kScheduler], answers[9]);
  }
  Postoffice::Get()->Barrier(0, 7);
  CHECK_EQ(asked, 20);
}

// One process, two workers.
void Two() {
  const auto work = [](int customer) {
    KVWorker<float> kv(0, customer);
    const std::vector<Key> keys = Spread(50);
    for (int i = 0; i < 20; ++i) kv.Wait(kv.Push(keys, Values(keys.size(), 1.0f)));
    Postoffice::Get()->Barrier(customer, kWorkerGroup);
    Values sums;
    kv.Wait(kv.Pull(keys, &sums));
    CHECK_EQ(sums[9], 40.0f);
  };
  if (!IsWorker()) {
    Start(0);
    Serve(0, KVServerDefaultHandle<float>());
    return Finalize(0);
  }
  std::thread other([&] {
    Start(1);
    work(1);
    Finalize(1);
  });
  Start(0);
  work(0);
  Finalize(0);
  other.join();
}

void Big() {
  Serve(0, Table());
  if (!IsWorker()) return;
  KVWorker<float> kv(0, 0);
  Values values(8'000'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  const Key key = MyRank() == 0 ? 1 : kMaxKey;
  kv.Wait(kv.Push({key}, values, {static_cast<int>(values.size())}));
  Values got;
  std::vector<int> lens;
  kv.Wait(kv.Pull({key}, &got, &lens));
  CHECK(got == values);
}

size_t PeakMegabytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  size_t kilobytes = 0;
  while (status >> word) {
    if (word == "VmHWM:") status >> kilobytes;
  }
  return kilobytes / 1024;
}

// 400 MB that the program does not wait for, to a server that takes its time.
void Flood() {
  Serve(0, [](const KVMeta& meta, const KVPairs<float>&, KVServer<float>* server) {
    SleepMs(12);
    server->Response(meta);
  });
  if (!IsWorker()) return;
  KVWorker<float> kv(0, 0);
  const Values megabyte(250'000);
  int last = 0;
  for (int i = 0; i < 400; ++i) last = kv.Push({1}, megabyte, {250'000});
  kv.Wait(last);
  std::cout << "peak " << PeakMegabytes() << std::endl;
}

// Nothing is ever answered.
void Silent() {
  Serve(0, [](const KVMeta&, const KVPairs<float>&, KVServer<float>*) {});
  if (!IsWorker()) return;
  KVWorker<float> kv(0, 0);
  const int push = kv.Push(Spread(10), Values(10));
  std::cout << "waiting" << std::endl;
  kv.Wait(push);
}

void AtBarrier() {
  if (!IsWorker()) return;
  std::cout << "waiting " << MyRank() << std::endl;
  if (MyRank() == 1) SleepMs(60'000);
  Postoffice::Get()->Barrier(0, kWorkerGroup);
}

void Throws() {
  Serve(0, [](const KVMeta&, const KVPairs<float>&, KVServer<float>*) {
    throw std::runtime_error("the disk is full");
  });
  if (!IsWorker()) return;
  KVWorker<float> kv(0, 0);
  kv.Wait(kv.Push({1}, {1.0f}));
}

void Types() {
  Serve(0, KVServerDefaultHandle<float>());
  if (!IsWorker()) return;
  KVWorker<double> kv(0, 0);
  kv.Wait(kv.Push({1}, {1.0}));
}

// The server answers with fewer keys than it was asked for.
void Fewer() {
  Serve(0,
        [](const KVMeta& meta, const KVPairs<float>&, KVServer<float>* server) { server->Response(meta); });
  if (!IsWorker()) return;
  KVWorker<float> kv(0, 0);
  Values got;
  kv.Wait(kv.Pull({1, 2}, &got));
}

void Inside() {
  Serve(0, KVServerDefaultHandle<float>());
  if (!IsWorker()) return;
  KVWorker<float> kv(0, 0);
  kv.Wait(kv.Push({1}, {1.0f}, {}, 0, [&kv] { kv.Wait(kv.Push({1}, {1.0f})); }));
}

void Late() {
  if (IsServer()) SleepMs(1000);
  Serve(0, KVServerDefaultHandle<float>());
  if (!IsWorker()) return;
  KVWorker<float> kv(0, 0);
  kv.Wait(kv.Push(Spread(10), Values(10)));
}

void None() {
  if (!IsWorker()) return;
  KVWorker<float> kv(6, 0);
  kv.Wait(kv.Push({1}, {1.0f}));
}

template <typename Call>
void ExpectError(const char* words, Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find(words) != std::string::npos) << error.what() << " for " << words;
    return;
  }
  LOG(FATAL) << "no error, which was to be: " << words;
}

void Misuse() {
  Serve(0, KVServerDefaultHandle<float>());
  if (!IsWorker()) return;
  KVWorker<float> kv(0, 0);
  ExpectError("there is a customer 0 of app 0 already", [] { KVWorker<float> second(0, 0); });
  ExpectError("sorted", [&] { kv.Push({2, 1}, {1.0f, 2.0f}); });
  ExpectError("values of 2 keys", [&] { kv.Push({1, 2}, {1.0f, 2.0f, 3.0f}); });
  ExpectError("lens", [&] { kv.Push({1, 2}, {1.0f, 2.0f}, {2}); });
  ExpectError("by lens", [&] { kv.Push({1, 2}, {1.0f, 2.0f}, {1, 0}); });
  ExpectError("is not in the group", [] { Postoffice::Get()->Barrier(0, kServerGroup); });
  ExpectError("there is no node 999", [] { Postoffice::Get()->GetNodeIDs(999); });
  kv.Wait(kv.Push({1}, {1.0f}));
}

const std::map<std::string, void (*)()> kModes = {
    {"lens", Lens},     {"calls", Calls},  {"order", Order},   {"held", Held},         {"simple", Simple},
    {"big", Big},       {"flood", Flood},  {"silent", Silent}, {"barrier", AtBarrier}, {"throws", Throws},
    {"types", Types},   {"fewer", Fewer},  {"late", Late},     {"inside", Inside},     {"none", None},
    {"misuse", Misuse}, {"nothing", [] {}}};

void Run(const std::string& mode) {
  if (mode == "two") return Two();
  if (mode == "misuse") ExpectError("Start was not called", [] { Finalize(0); });
  Start(0);
  const int rank = MyRank();
  const char* const role = IsWorker() ? "worker" : IsServer() ? "server" : "scheduler";
  if (mode == "leave") {
    KVWorker<float> kv(3, 3);
    const int never = IsWorker() ? kv.get_customer()->NewRequest(kServerGroup) : 0;
    Finalize(0, false);
    if (IsWorker()) ExpectError("Finalize has ended the node", [&] { kv.Wait(never); });
  } else if (mode == "vanish") {
    if (IsWorker() && rank == 0) return;
    Finalize(0);
  } else if (mode == "again") {
    Finalize(0);
    Start(0);
    Finalize(0);
  } else {
    kModes.at(mode)();
    Finalize(0);
  }
  std::cout << "done " << role << ' ' << rank << std::endl;
}

}  // namespace

int main(int, char** argv) {
  try {
    Run(argv[1]);
  } catch (const Error& error) {
    std::cout << "error: " << error.what() << std::endl;
    return 3;
  }
  return 0;
}
