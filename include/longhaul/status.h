// Named outcomes: every call that can fail returns a Status or a Result<T>.
//
// Three kinds of failure have three answers in longhaul: the peer or the network misbehaved, or the caller
// asked for what is impossible now (both are a Status, never an exception), or longhaul has a bug (the
// process stops with the values printed).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace longhaul {

// What went wrong, in terms that a caller can act on. Values are stable: they travel on the wire.
enum class StatusCode : uint8_t {
  kOk = 0,
  kInvalidArgument = 1,     // The caller's argument can never work.
  kNotFound = 2,            // A file, tensor or peer by that name does not exist.
  kAlreadyExists = 3,       // For example a second worker with the same rank.
  kFailedPrecondition = 4,  // Right call, wrong time: not connected, already closed.
  kResourceExhausted = 5,   // A named bound is reached; try again when something has drained.
  kUnavailable = 6,         // The peer cannot be reached, or refuses for now.
  kDeadlineExceeded = 7,    // WaitFor's time has passed; the operation goes on.
  kProtocolViolation = 8,   // The peer broke the protocol.
  kPermissionDenied = 9,    // Authentication or authorisation failed.
  kCancelled = 10,          // Given up by this side.
  kAborted = 11,            // Given up by the other side, or by a policy of the job.
  kDataLoss = 12,           // Data is damaged or truncated (files, datasets, checkpoints).
  kVersionMismatch = 13,    // The peer speaks another version of the protocol.
  kPeerDead = 14,           // Nothing was heard from the peer for the idle time-out.
  kSettingsMismatch = 15,   // Worker and server disagree about the job or a tensor.
  kInternal = 16,           // A system call failed unexpectedly.
  kAeadLimitReached = 17,   // The cipher may do no more for the connection (RFC 9001 §6.6): connect again.
};

// The code's name without the k, for example "PeerDead".
std::string_view StatusCodeName(StatusCode code);

// Copyable; ok() costs one comparison.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  static Status Ok() { return {}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "PeerDead: server 127.0.0.1:7700 was silent for 10 s", or "Ok".
  std::string ToString() const;

  friend bool operator==(const Status& a, const Status& b) {
    return a.code_ == b.code_ && a.message_ == b.message_;
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value or the Status that says why there is none. Reading the value of a failed Result is a bug of the
// caller and stops the process, with the Status printed: the one call of this library that does.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit by design
    if (status_.ok()) status_ = Status(StatusCode::kInternal, "Result built from an Ok status");
  }

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }

  T& value() & { return *Checked(); }
  const T& value() const& { return *const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(*Checked()); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T>& Checked();

  std::optional<T> value_;
  Status status_;
};

// Stops the process: the value of a failed Result was read.
[[noreturn]] void DieOnBadResultAccess(const Status& status);

template <typename T>
std::optional<T>& Result<T>::Checked() {
  if (!value_.has_value()) DieOnBadResultAccess(status_);
  return value_;
}

}  // namespace longhaul
