// A copy of all objects of one kind, kept up by a list and then a watch (client-go's reflector and informer).
//
//   list, page by page -> store -> watch from the list's resourceVersion -> ... -> 410 Gone -> list again
//
// What a list does not contain any more is delivered as deleted, so no delete is lost while no watch ran.
// Changes come by key and coalesced: what is not fetched yet is merged, as a level-triggered reader wants
// it.
//
// The copy is whole or not there: where the store's bound is reached, synced() is false and overflowed()
// true, since a reader that misses a pod would make it a second time.
//
// Not thread-safe. Time and chance (0..1) are arguments.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/instant.h"
#include "operator/api/core/api_request.h"
#include "operator/api/core/watch_decoder.h"

namespace longhaul::kube::api {

struct InformerOptions {
  size_t max_objects = 20'000;
  // All objects are delivered again so often: what a reader has missed is found out.
  Duration resync = std::chrono::minutes(10);
  uint32_t page_limit = kPageLimit;
  // client-go (tools/cache/reflector.go): 0.8 s, doubling, at most 30 s.
  Duration first_back_off = std::chrono::milliseconds(800);
  Duration longest_back_off = std::chrono::seconds(30);
  // client-go (minWatchTimeout): 5 to 10 minutes by chance, so that watches do not all end together.
  Duration watch_time = std::chrono::minutes(5);
  // Takes away what is not needed, for the memory's sake; metadata.managedFields goes always.
  std::function<void(Json*)> slim;
};

struct InformerCounters {
  uint64_t lists = 0;  // begun
  uint64_t pages = 0;
  uint64_t watches = 0;  // begun
  uint64_t events = 0;   // of watches, without bookmarks
  uint64_t bookmarks = 0;
  uint64_t gone = 0;            // 410: of a watch or a continue token
  uint64_t failures = 0;        // of lists and watches, but for 410
  uint64_t malformed = 0;       // objects without a name, pages without items
  uint64_t overflows = 0;       // times that the store's bound was reached
  uint64_t relist_deletes = 0;  // deletes that a list has shown
  uint64_t resyncs = 0;
};

// A key's objects: what the reader got last, and what is now.
struct Change {
  std::string key;                     // "namespace/name", or "name"
  std::shared_ptr<const Json> before;  // nullptr: it was not there
  std::shared_ptr<const Json> after;   // nullptr: it is not there any more
  bool IsResync() const { return before == after; }
};

class Informer {
 public:
  explicit Informer(InformerOptions options = {});

  enum class Step : uint8_t {
    kWait,   // until `at`, or until what runs says something
    kList,   // begin a list of `page_limit` objects at `continue_token`; its answer goes to OnList
    kWatch,  // begin a watch from `resource_version`; OnWatchEvent, then OnWatchEnd
    kStop,   // end the watch that runs; OnWatchEnd is not called
  };
  struct Want {
    Step step = Step::kWait;
    Instant at = Instant::Infinite();
    uint32_t page_limit = 0;
    std::string continue_token;
    std::string resource_version;
    Duration watch_time{0};
  };
  // What is to be done; each is said once.
  Want Poll(Instant now, double chance);

  void OnList(const ApiResult& page, Instant now, double chance);
  void OnWatchEvent(WatchEvent event, Instant now, double chance);
  // ok(): the server has ended it as asked, or the connection was cut after whole events.
  void OnWatchEnd(const ApiResult& result, Instant now, double chance);

  // The next change; a key has one at a time.
  std::optional<Change> Next();

  // A whole list is in the store, and the store has room for what came since.
  bool synced() const { return synced_; }
  bool overflowed() const { return overflowed_; }
  using Store = std::map<std::string, std::shared_ptr<const Json>, std::less<>>;
  const Store& objects() const { return store_; }
  std::shared_ptr<const Json> Find(std::string_view key) const;
  // The newest that is known; where the next watch begins.
  const std::string& resource_version() const { return resource_version_; }
  const InformerCounters& counters() const { return counters_; }
  // The last failure in words; empty since things went well.
  const std::string& trouble() const { return trouble_; }
  size_t pending() const { return changes_.size(); }

 private:
  enum class Mode : uint8_t { kListDue, kListing, kWatchDue, kWatching, kStopDue };

  bool TakePage(const ApiResult& page);
  void FinishList(Instant now);
  void Relist();
  void WatchWorks();
  void Fail(std::string why, Instant now, double chance);
  void Overflow(Instant now, double chance);
  std::shared_ptr<const Json> Slimmed(Json object) const;
  void Note(const std::string& key, std::shared_ptr<const Json> before, std::shared_ptr<const Json> after);
  void Resync(Instant now);

  const InformerOptions options_;
  Mode mode_ = Mode::kListDue;
  Instant not_before_;     // of the next list or watch
  uint32_t failures_ = 0;  // since a watch worked
  uint32_t page_limit_;
  std::string continue_token_;
  std::string resource_version_;
  Store listed_;  // pages of a list that is not whole yet
  Store store_;
  std::map<std::string, Change> changes_;
  Instant watch_began_;
  bool watch_spoke_ = false;
  Instant resync_at_ = Instant::Infinite();
  bool synced_ = false;
  bool overflowed_ = false;
  std::string trouble_;
  InformerCounters counters_;
};

// "namespace/name", or "name" where there is no namespace; empty: the object has no name.
std::string KeyOf(const Json& object);

}  // namespace longhaul::kube::api
