// Keys and values: workers push and pull, servers hold what a handle of the program makes of it.
//
//   ps::KVWorker<float> kv(0, 0);                          auto* server = new ps::KVServer<float>(0);
//   kv.Wait(kv.Push(keys, values));                        server->set_request_handle(handle);
//   kv.Wait(kv.Pull(keys, &values));
//
// Keys are sorted and each there once; every server has an even part of all possible keys. Requests of one
// worker reach a server in their order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ps/simple_app.h"

namespace ps {

// Without lens every key has vals.size() / keys.size() values, with it key i has lens[i].
template <typename Val>
struct KVPairs {
  SArray<Key> keys;
  SArray<Val> vals;
  SArray<int> lens;
  int priority = 0;  // without meaning: requests leave in their order
};

template <typename Val>
class KVWorker : public SimpleApp {
 public:
  using SimpleApp::obj_;
  // Called on this worker's own thread when a request is answered by all of its servers, before Wait returns.
  using Callback = std::function<void()>;
  using SlicedKVs = std::vector<std::pair<bool, KVPairs<Val>>>;  // by server: whether it gets something, what
  using Slicer =
      std::function<void(const KVPairs<Val>& pairs, const std::vector<Range>& ranges, SlicedKVs* sliced)>;

  // app_id: the KVServer's. customer_id: unique in this process; one of Start.
  explicit KVWorker(int app_id, int customer_id = 0) : slicer_(Slice) { Open(app_id, customer_id); }
  ~KVWorker() override { Close(); }

  // All of these return at once, but wait while too much is on its way. What they return is for Wait. Push
  // and ZPush copy what they send before they return. What Pull and PushPull write to has to live until the
  // request is over: `vals` (and `lens`) are empty, and get their size, or have the size of what comes. cmd:
  // for the server's handle. Errors: Error (the job has failed; keys and values do not fit each other).
  int Push(const std::vector<Key>& keys, const std::vector<Val>& vals, const std::vector<int>& lens = {},
           int cmd = 0, const Callback& callback = nullptr, int priority = 0) {
    return ZPush(Borrowed(keys), Borrowed(vals), Borrowed(lens), cmd, callback, priority);
  }
  int Pull(const std::vector<Key>& keys, std::vector<Val>* vals, std::vector<int>* lens = nullptr,
           int cmd = 0, const Callback& callback = nullptr, int priority = 0) {
    return Begin(false, Pairs(Borrowed(keys), {}, {}, priority), cmd,
                 Filling(keys.size(), vals, lens, callback));
  }
  int PushPull(const std::vector<Key>& keys, const std::vector<Val>& vals, std::vector<Val>* outs,
               std::vector<int>* lens = nullptr, int cmd = 0, const Callback& callback = nullptr,
               int priority = 0) {
    const auto sent_lens = lens != nullptr ? Borrowed(*lens) : SArray<int>();
    return Begin(true, Pairs(Borrowed(keys), Borrowed(vals), sent_lens, priority), cmd,
                 Filling(keys.size(), outs, lens, callback));
  }
  int ZPush(const SArray<Key>& keys, const SArray<Val>& vals, const SArray<int>& lens = {}, int cmd = 0,
            const Callback& callback = nullptr, int priority = 0) {
    return Begin(true, Pairs(keys, vals, lens, priority), cmd, {nullptr, callback});
  }
  int ZPull(const SArray<Key>& keys, SArray<Val>* vals, SArray<int>* lens = nullptr, int cmd = 0,
            const Callback& callback = nullptr, int priority = 0) {
    return Begin(false, Pairs(keys, {}, {}, priority), cmd, Filling(keys.size(), vals, lens, callback));
  }
  int ZPushPull(const SArray<Key>& keys, const SArray<Val>& vals, SArray<Val>* outs,
                SArray<int>* lens = nullptr, int cmd = 0, const Callback& callback = nullptr,
                int priority = 0) {
    const auto sent_lens = lens != nullptr ? *lens : SArray<int>();
    return Begin(true, Pairs(keys, vals, sent_lens, priority), cmd,
                 Filling(keys.size(), outs, lens, callback));
  }
  // Until the request is over and its callback has run. Errors: Error, by name, also when a node dies.
  void Wait(int timestamp) override { obj_->WaitRequest(timestamp); }

  // How pairs are cut among servers; before the first request.
  void set_slicer(const Slicer& slicer) {
    CHECK(slicer) << "an empty slicer";
    slicer_ = slicer;
  }

 private:
  using Parts = std::vector<KVPairs<Val>>;
  // What becomes of the servers' answers, in order of their keys; null of a push.
  using Fill = std::function<void(const Parts&)>;
  struct Ending {
    Fill fill;
    Callback callback;
  };
  struct Pending {
    Ending ending;
    Parts parts;
    size_t servers = 0;  // that have not answered
  };

  template <typename V>
  static SArray<V> Borrowed(const std::vector<V>& values) {
    return SArray<V>(const_cast<V*>(values.data()), values.size());
  }
  static KVPairs<Val> Pairs(const SArray<Key>& keys, const SArray<Val>& vals, const SArray<int>& lens,
                            int priority) {
    KVPairs<Val> pairs;
    pairs.keys = keys;
    pairs.vals = vals;
    pairs.lens = lens;
    pairs.priority = priority;
    return pairs;
  }

  // The default slicer.
  static void Slice(const KVPairs<Val>& pairs, const std::vector<Range>& ranges, SlicedKVs* sliced) {
    const SArray<Key>& keys = pairs.keys;
    const size_t count = keys.size();
    const bool of_lens = !pairs.lens.empty();
    if (of_lens) {
      CHECK_EQ(pairs.lens.size(), count) << "lens";
    } else if (count > 0) {
      CHECK_EQ(pairs.vals.size() % count, size_t{0}) << "values of " << count << " keys";
    }
    sliced->assign(ranges.size(), {});
    size_t first = 0, first_value = 0;
    for (size_t server = 0; server < ranges.size(); ++server) {
      const bool last_server = server + 1 == ranges.size();  // it has kMaxKey, too
      const Key* const end =
          last_server ? keys.end()
                      : std::lower_bound(keys.begin() + first, keys.end(), Key{ranges[server].end()});
      const auto past = static_cast<size_t>(end - keys.begin());
      if (past == first) continue;
      auto& [gets, part] = (*sliced)[server];
      gets = true;
      part.keys = keys.segment(first, past);
      size_t values = count == 0 ? 0 : pairs.vals.size() / count * (past - first);
      if (of_lens) {
        part.lens = pairs.lens.segment(first, past);
        values = 0;
        for (const int length : part.lens) {
          CHECK_GE(length, 0);
          values += static_cast<size_t>(length);
        }
        if (pairs.vals.empty()) values = 0;  // of a pull
      }
      part.vals = pairs.vals.segment(first_value, first_value + values);
      first_value += values;
      first = past;
    }
    CHECK_EQ(first_value, pairs.vals.size()) << "values, by lens";
  }

  int Begin(bool push, const KVPairs<Val>& pairs, int cmd, Ending ending) {
    CHECK(std::is_sorted(pairs.keys.begin(), pairs.keys.end())) << "keys have to be sorted";
    SlicedKVs sliced;
    slicer_(pairs, Postoffice::Get()->GetServerKeyRanges(), &sliced);
    const bool pull = ending.fill != nullptr;
    Pending pending;
    pending.ending = std::move(ending);
    for (const auto& [gets, part] : sliced) pending.servers += gets ? 1 : 0;
    const int timestamp = obj_->NewRequest(kServerGroup);
    const size_t servers = pending.servers;
    if (servers == 0) {
      End(pending);
    } else {
      const std::lock_guard<std::mutex> lock(mutex_);
      pending_.emplace(timestamp, std::move(pending));
    }
    obj_->AddResponse(timestamp, static_cast<int>(sliced.size() - servers));
    for (size_t server = 0; server < sliced.size(); ++server) {
      if (!sliced[server].first) continue;
      const KVPairs<Val>& part = sliced[server].second;
      Message message;
      message.app_id = obj_->app_id();
      message.customer_id = obj_->customer_id();
      message.recver = Postoffice::ServerRankToID(static_cast<int>(server));
      message.timestamp = timestamp;
      message.head = cmd;
      message.request = true;
      message.push = push;
      message.pull = pull;
      message.value_bytes = sizeof(Val);
      message.keys = part.keys;
      message.vals = part.vals;
      message.lens = part.lens;
      obj_->Send(message);
    }
    return timestamp;
  }

  static void End(const Pending& pending) {
    if (pending.ending.fill) pending.ending.fill(pending.parts);
    if (pending.ending.callback) pending.ending.callback();
  }

  // V and L: std::vector or SArray.
  template <typename V, typename L>
  static Ending Filling(size_t keys, V* vals, L* lens, const Callback& callback) {
    CHECK_NOTNULL(vals);
    const auto fill = [keys, vals, lens](const Parts& parts) {
      size_t of_keys = 0, of_values = 0;
      for (const KVPairs<Val>& part : parts) {
        of_keys += part.keys.size();
        of_values += part.vals.size();
        if (lens != nullptr) CHECK_EQ(part.lens.size(), part.keys.size()) << "lens in a server's response";
      }
      CHECK_EQ(of_keys, keys) << "keys in the servers' responses";
      if (vals->empty()) vals->resize(of_values);
      CHECK_EQ(vals->size(), of_values) << "values in the servers' responses, and room for them";
      if (lens != nullptr && lens->empty()) lens->resize(keys);
      if (lens != nullptr) CHECK_EQ(lens->size(), keys) << "room for lens";
      Val* next = vals->data();
      int* next_length = lens == nullptr ? nullptr : lens->data();
      for (const KVPairs<Val>& part : parts) {
        next = std::copy(part.vals.begin(), part.vals.end(), next);
        if (lens != nullptr) next_length = std::copy(part.lens.begin(), part.lens.end(), next_length);
      }
    };
    return {fill, callback};
  }

  // A server's answer; on this worker's thread.
  void Process(const Message& message) override {
    if (message.simple_app) return SimpleApp::Process(message);
    Pending over;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = pending_.find(message.timestamp);
      if (found == pending_.end()) return;
      Pending& pending = found->second;
      if (pending.ending.fill) {
        CHECK_EQ(message.value_bytes, sizeof(Val))
            << "bytes of a value at server " << Postoffice::IDtoRank(message.sender) << " and here";
        pending.parts.push_back(Pairs(message.keys, SArray<Val>(message.vals), message.lens, 0));
      }
      if (--pending.servers > 0) return;
      over = std::move(pending);
      pending_.erase(found);
    }
    std::sort(over.parts.begin(), over.parts.end(), [](const KVPairs<Val>& a, const KVPairs<Val>& b) {
      return !b.keys.empty() && (a.keys.empty() || a.keys.front() < b.keys.front());
    });
    End(over);
  }

  Slicer slicer_;
  std::mutex mutex_;
  std::unordered_map<int, Pending> pending_;  // by time stamp
};

// What a request says of itself.
struct KVMeta {
  int cmd = 0;
  bool push = false;
  bool pull = false;
  int sender = 0;  // node
  int timestamp = 0;
  int customer_id = 0;  // the worker's
};

template <typename Val>
class KVServer : public SimpleApp {
 public:
  // Called on this server's own thread, one request at a time; has to answer by Response, then or later. The
  // arrays of `pairs` may be kept.
  using ReqHandle = std::function<void(const KVMeta& meta, const KVPairs<Val>& pairs, KVServer* server)>;

  explicit KVServer(int app_id) : app_id_(app_id) {}
  ~KVServer() override { Close(); }

  // Requests wait until it is set.
  void set_request_handle(const ReqHandle& handle) {
    CHECK(handle) << "an empty request handle";
    handle_.Set(handle);
    if (obj_ == nullptr) Open(app_id_, app_id_);
  }
  // To be called once for each request. Errors: Error (the job has failed).
  void Response(const KVMeta& meta, const KVPairs<Val>& pairs = KVPairs<Val>()) {
    Message message;
    message.app_id = app_id_;
    message.customer_id = meta.customer_id;
    message.recver = meta.sender;
    message.timestamp = meta.timestamp;
    message.head = meta.cmd;
    message.push = meta.push;
    message.pull = meta.pull;
    message.value_bytes = sizeof(Val);
    message.keys = pairs.keys;
    message.vals = pairs.vals;
    message.lens = pairs.lens;
    obj_->Send(message);
  }

 private:
  void Process(const Message& message) override {
    if (message.simple_app) return SimpleApp::Process(message);
    CHECK_EQ(message.value_bytes, sizeof(Val))
        << "bytes of a value at worker " << Postoffice::IDtoRank(message.sender) << " and here";
    KVMeta meta;
    meta.cmd = message.head;
    meta.push = message.push;
    meta.pull = message.pull;
    meta.sender = message.sender;
    meta.timestamp = message.timestamp;
    meta.customer_id = message.customer_id;
    KVPairs<Val> pairs;
    pairs.keys = message.keys;
    pairs.vals = message.vals;
    pairs.lens = message.lens;
    (*handle_.Get())(meta, pairs, this);
  }

  const int app_id_;
  internal::SharedHandle<ReqHandle> handle_;
};

// Adds what is pushed to what is there: one value for each key.
template <typename Val>
struct KVServerDefaultHandle {
  void operator()(const KVMeta& meta, const KVPairs<Val>& pairs, KVServer<Val>* server) {
    if (meta.push)
      CHECK_EQ(pairs.vals.size(), pairs.keys.size()) << "the default handle keeps one value for a key";
    KVPairs<Val> answer;
    if (meta.pull) {
      answer.keys = pairs.keys;
      answer.vals.resize(pairs.keys.size());
    }
    for (size_t i = 0; i < pairs.keys.size(); ++i) {
      Val& stored = store[pairs.keys[i]];
      if (meta.push) stored += pairs.vals[i];
      if (meta.pull) answer.vals[i] = stored;
    }
    server->Response(meta, answer);
  }
  std::unordered_map<Key, Val> store;
};

}  // namespace ps
