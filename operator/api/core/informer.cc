#include "operator/api/core/informer.h"

#include <algorithm>
#include <utility>

#include "operator/api/core/retry_policy.h"

namespace longhaul::kube::api {
namespace {

// client-go's "very short watch": it ended at once without a word, which is a fault of the server.
constexpr Duration kShortWatch = std::chrono::seconds(1);

}  // namespace

std::string KeyOf(const Json& object) {
  const std::string_view name = TextAt(object, {"metadata", "name"});
  const std::string_view name_space = TextAt(object, {"metadata", "namespace"});
  if (name.empty() || name_space.empty()) return std::string(name);
  return std::string(name_space) + "/" + std::string(name);
}

Informer::Informer(InformerOptions options)
    : options_(std::move(options)), page_limit_(std::max(1u, options_.page_limit)) {}

Informer::Want Informer::Poll(Instant now, double chance) {
  Want want;
  if (now >= resync_at_ && synced_) Resync(now);
  switch (mode_) {
    case Mode::kStopDue:
      want.step = Step::kStop;
      Relist();
      return want;
    case Mode::kListDue:
      want.at = not_before_;
      if (now < not_before_) break;
      if (continue_token_.empty()) ++counters_.lists;
      want.step = Step::kList;
      want.page_limit = page_limit_;
      want.continue_token = continue_token_;
      mode_ = Mode::kListing;
      return want;
    case Mode::kWatchDue:
      want.at = not_before_;
      if (now < not_before_) break;
      ++counters_.watches;
      want.step = Step::kWatch;
      want.resource_version = resource_version_;
      want.watch_time = options_.watch_time +
                        Duration(Saturated(static_cast<double>(options_.watch_time.count()) * chance));
      mode_ = Mode::kWatching;
      watch_began_ = now;
      watch_spoke_ = false;
      return want;
    case Mode::kListing:
    case Mode::kWatching:
      break;
  }
  if (synced_) want.at = std::min(want.at, resync_at_);
  return want;
}

void Informer::OnList(const ApiResult& page, Instant now, double chance) {
  if (mode_ != Mode::kListing) return;
  mode_ = Mode::kListDue;
  if (page.code == ApiCode::kGone) {  // the list's snapshot was compacted: the pages so far are of no use
    ++counters_.gone;
    Relist();
    not_before_ = now + BackOff(options_.first_back_off, options_.longest_back_off, ++failures_, chance);
    return;
  }
  // A page of large objects: fewer of them, at once, from where it was.
  if (page.code == ApiCode::kTooLarge && page_limit_ > 1) {
    page_limit_ = std::max(1u, page_limit_ / 4);
    return;
  }
  if (!page.ok()) return Fail("list: " + page.ToString(), now, chance);
  ++counters_.pages;
  if (!TakePage(page)) {
    ++counters_.malformed;
    return Fail("list: an answer without items, names or a resourceVersion", now, chance);
  }
  if (listed_.size() > options_.max_objects) return Overflow(now, chance);
  page_limit_ = std::min(std::max(1u, options_.page_limit), page_limit_ * 2);
  continue_token_ = TextAt(page.body, {"metadata", "continue"});
  if (continue_token_.empty()) FinishList(now);
}

bool Informer::TakePage(const ApiResult& page) {
  const Json* items = ValueAt(page.body, {"items"});
  const std::string_view version = TextAt(page.body, {"metadata", "resourceVersion"});
  // Go prints an empty list as null.
  if (items == nullptr || (!items->is_array() && !items->is_null()) || version.empty()) return false;
  for (const Json& item : *items) {
    const std::string key = KeyOf(item);
    if (key.empty()) return false;
    listed_[key] = Slimmed(item);
    if (listed_.size() > options_.max_objects) break;
  }
  resource_version_ = version;
  return true;
}

void Informer::FinishList(Instant now) {
  for (const auto& [key, object] : store_) {
    if (listed_.contains(key)) continue;
    ++counters_.relist_deletes;
    Note(key, object, nullptr);
  }
  for (const auto& [key, object] : listed_) {
    const std::shared_ptr<const Json> before = Find(key);
    if (before != nullptr && *before == *object) continue;
    Note(key, before, object);
  }
  store_ = std::exchange(listed_, {});
  synced_ = true;
  overflowed_ = false;
  trouble_.clear();
  mode_ = Mode::kWatchDue;
  not_before_ = now;
  if (resync_at_.IsInfinite()) resync_at_ = now + options_.resync;
}

void Informer::OnWatchEvent(WatchEvent event, Instant now, double chance) {
  if (mode_ != Mode::kWatching || event.type == WatchEvent::Type::kError) return;
  if (event.type == WatchEvent::Type::kBookmark) {
    ++counters_.bookmarks;
    WatchWorks();
    resource_version_ = std::move(event.resource_version);
    return;
  }
  ++counters_.events;
  const std::string key = KeyOf(event.object);
  if (key.empty()) {
    ++counters_.malformed;
    Fail("watch: an object without a name", now, chance);
    mode_ = Mode::kStopDue;
    return;
  }
  WatchWorks();
  const auto found = store_.find(key);
  const std::shared_ptr<const Json> before = found == store_.end() ? nullptr : found->second;
  resource_version_ = std::move(event.resource_version);
  if (event.type == WatchEvent::Type::kDeleted) {
    if (before == nullptr) return;
    store_.erase(found);
    return Note(key, before, nullptr);
  }
  if (before == nullptr && store_.size() >= options_.max_objects) {
    Overflow(now, chance);
    mode_ = Mode::kStopDue;
    return;
  }
  std::shared_ptr<const Json> object = Slimmed(std::move(event.object));
  store_[key] = object;
  Note(key, before, std::move(object));
}

void Informer::OnWatchEnd(const ApiResult& result, Instant now, double chance) {
  if (mode_ != Mode::kWatching) return;
  mode_ = Mode::kWatchDue;
  not_before_ = now;
  if (result.code == ApiCode::kGone) {
    ++counters_.gone;
    Relist();
    // A server that says so at once again, and again, is not asked without end.
    if (!watch_spoke_ && failures_++ > 0)
      not_before_ = now + BackOff(options_.first_back_off, options_.longest_back_off, failures_, chance);
    return;
  }
  if (result.ok() && (watch_spoke_ || now - watch_began_ >= kShortWatch)) return WatchWorks();
  const std::string what = result.ok() ? "ended at once" : result.ToString();
  // After a line that is no event, nothing says what the store lacks.
  const bool relist = result.code == ApiCode::kMalformed || result.code == ApiCode::kTooLarge ||
                      result.code == ApiCode::kInvalid;
  Fail("watch: " + what, now, chance);
  if (relist) Relist();
}

void Informer::WatchWorks() {
  watch_spoke_ = true;
  failures_ = 0;
  trouble_.clear();
}

std::optional<Change> Informer::Next() {
  if (changes_.empty()) return std::nullopt;
  return std::move(changes_.extract(changes_.begin()).mapped());
}

std::shared_ptr<const Json> Informer::Find(std::string_view key) const {
  const auto found = store_.find(key);
  return found == store_.end() ? nullptr : found->second;
}

void Informer::Relist() {
  listed_.clear();
  continue_token_.clear();
  mode_ = Mode::kListDue;
}

void Informer::Fail(std::string why, Instant now, double chance) {
  ++counters_.failures;
  trouble_ = std::move(why);
  not_before_ = now + BackOff(options_.first_back_off, options_.longest_back_off, ++failures_, chance);
  if (mode_ == Mode::kListDue) Relist();
}

void Informer::Overflow(Instant now, double chance) {
  ++counters_.overflows;
  overflowed_ = true;
  synced_ = false;
  Fail("more than " + std::to_string(options_.max_objects) +
           " objects: raise the bound or narrow what is watched",
       now, chance);
}

std::shared_ptr<const Json> Informer::Slimmed(Json object) const {
  if (const auto metadata = object.find("metadata"); metadata != object.end())
    metadata->erase("managedFields");
  if (options_.slim) options_.slim(&object);
  return std::make_shared<const Json>(std::move(object));
}

void Informer::Note(const std::string& key, std::shared_ptr<const Json> before,
                    std::shared_ptr<const Json> after) {
  const auto [found, added] = changes_.try_emplace(key, Change{key, std::move(before), nullptr});
  found->second.after = std::move(after);
  // It came and went unseen.
  if (!added && found->second.before == nullptr && found->second.after == nullptr) changes_.erase(found);
}

void Informer::Resync(Instant now) {
  resync_at_ = now + options_.resync;
  ++counters_.resyncs;
  for (const auto& [key, object] : store_) {
    if (!changes_.contains(key)) Note(key, object, object);
  }
}

}  // namespace longhaul::kube::api
