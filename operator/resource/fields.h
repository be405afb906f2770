// Reads the fields of an object that came from an API server, or from anything else: whatever the JSON is,
// nothing throws. The first problem is kept, as a sentence that names the field and the remedy.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "longhaul/job.h"
#include "longhaul/status.h"

namespace longhaul::kube {

using Json = nlohmann::json;

// Objects below `value`, itself included, at most: a depth that nothing here recurses too deep for. An API
// server's own bound is 10,000 for JSON, which the stack of a thread does not hold.
inline constexpr int kMaxDepth = 32;
bool DeeperThan(const Json& value, int depth);

// The member at a path of keys, null where any of them is missing or no object.
const Json& At(const Json& value, std::initializer_list<std::string_view> path);
// The same, as text, "" where it is no string; as a number, `otherwise` where it is none that fits.
std::string TextAt(const Json& value, std::initializer_list<std::string_view> path);
int64_t NumberAt(const Json& value, std::initializer_list<std::string_view> path, int64_t otherwise);

// As a line; bytes that are no UTF-8 become U+FFFD.
std::string Dump(const Json& value);

// DNS-1123 label: a-z, 0-9 and -, begins and ends with a letter or digit, 63 characters at most.
bool IsLabel(std::string_view text);
// Labels joined by dots, 253 characters at most: names of most objects.
bool IsSubdomain(std::string_view text);

class Fields {
 public:
  // `object` outlives this. An absent one (null) has no fields; another type than an object is a problem.
  // `status` gets the first problem of this and of all that come from it.
  Fields(const Json& object, std::string path, Status* status);

  bool present() const { return object_ != nullptr; }
  bool Has(std::string_view key);
  const std::string& path() const { return path_; }
  std::string PathOf(std::string_view key) const;

  // Of a whole number in low..high; absent: `otherwise`, and without that a problem.
  int64_t Number(std::string_view key, int64_t low, int64_t high, std::optional<int64_t> otherwise);
  std::optional<int64_t> OptionalNumber(std::string_view key, int64_t low, int64_t high);
  bool Boolean(std::string_view key, bool otherwise);
  // Absent: "". `most` bytes at most, and not empty where it is there.
  std::string Text(std::string_view key, size_t most);
  std::string RequiredText(std::string_view key, size_t most);
  // A text for which `valid` holds; `shape` says what it should be.
  std::string TextLike(std::string_view key, bool (*valid)(std::string_view), std::string_view shape);
  template <typename E>
  E OneOf(std::string_view key, E otherwise);
  Fields Object(std::string_view key);
  // Null where it is absent or no array of at most `most` elements.
  const Json* Array(std::string_view key, size_t most);
  // The member, whatever it is; null where it is absent.
  const Json& Any(std::string_view key);

  // Fields that none of the calls above has asked for are a problem.
  void NoOthers();
  // "PATH.KEY: MESSAGE", where there is no problem yet.
  void Fail(std::string_view key, std::string_view message);
  // A problem that has its path already.
  void FailAs(const Status& problem);

 private:
  const Json* Find(std::string_view key);

  const Json* object_ = nullptr;
  std::string path_;
  Status* status_;
  std::set<std::string, std::less<>> known_;
};

template <typename E>
E Fields::OneOf(std::string_view key, E otherwise) {
  const std::string text = Text(key, 64);
  if (text.empty()) return otherwise;
  const auto value = FromName<E>(text);
  if (value) return *value;
  std::string names;
  for (const auto name : kNamesOf<E>) names += (names.empty() ? "" : ", ") + std::string(name);
  Fail(key, "\"" + text + "\" is none of " + names);
  return otherwise;
}

}  // namespace longhaul::kube
