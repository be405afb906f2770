#include "longhaul/c_api.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/flags/counter_json.h"
#include "base/flags/job_json.h"
#include "codec/chunk/quantize.h"
#include "longhaul/client.h"
#include "worker/c/settings.h"

using longhaul::ByteSpan;
using longhaul::Client;
using longhaul::ConnectOptions;
using longhaul::Operation;
using longhaul::OperationStats;
using longhaul::Result;
using longhaul::Status;
using longhaul::StatusCode;
using longhaul::Tensor;
using longhaul::TensorOptions;
using nlohmann::json;

struct longhaul_tensor {
  Tensor tensor;
};

struct longhaul_client {
  explicit longhaul_client(Client connected) : client(std::move(connected)) {}

  const pid_t process = ::getpid();
  std::mutex mutex;
  // With the mutex: none once the client is closed and no call is in it.
  std::optional<Client> client;
  size_t calls = 0;
  bool closed = false;
  std::deque<longhaul_tensor> tensors;  // addresses stay
};

namespace {

// Memory that an operation needs for elements of another type, until its values are where the caller wants
// them.
struct Borrowed {
  std::vector<float> gradient, values;
  void* out = nullptr;
  longhaul::DType dtype = longhaul::DType::kFloat32;
  Status how;  // once it has ended
  std::atomic<bool> ended{false};
};

}  // namespace

struct longhaul_operation {
  Operation operation;
  std::shared_ptr<Borrowed> borrowed = std::make_shared<Borrowed>();
  pid_t process = ::getpid();
};

namespace {

static_assert(LONGHAUL_AEAD_LIMIT_REACHED == static_cast<int>(StatusCode::kAeadLimitReached));
static_assert(LONGHAUL_INTERNAL == static_cast<int>(StatusCode::kInternal));
static_assert(LONGHAUL_FLOAT16 == static_cast<int>(longhaul::DType::kFloat16));

std::string& LastError() {
  thread_local std::string text;
  return text;
}

int32_t Code(const Status& status) noexcept {
  if (!status.ok()) {
    try {
      LastError() = status.message();
    } catch (const std::bad_alloc&) {
      LastError().clear();
    }
  }
  return static_cast<int32_t>(status.code());
}

int32_t Invalid(const char* why) { return Code({StatusCode::kInvalidArgument, why}); }

int32_t OfParent() {
  return Code({StatusCode::kFailedPrecondition, "the operation is of the process that has forked this one"});
}

// Nothing leaves but a code.
template <typename Body>
int32_t Guarded(const Body& body) noexcept {
  LastError().clear();  // a text may need memory that there is none of
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return LONGHAUL_RESOURCE_EXHAUSTED;
  } catch (...) {
    return LONGHAUL_INTERNAL;
  }
}

// What is left of a closed client goes with the last call that is in it.
void End(longhaul_client* client, std::unique_lock<std::mutex> lock) {
  if (!client->closed || client->calls > 0) return;
  std::optional<Client> last;
  last.swap(client->client);
  lock.unlock();
}

// The same for a call of a client that is there and not closed, in the process that connected it.
template <typename Body>
int32_t With(longhaul_client* client, const Body& body) noexcept {
  return Guarded([&] {
    if (client == nullptr) return Invalid("the client is null");
    if (client->process != ::getpid())
      return Code({StatusCode::kFailedPrecondition, "the client is of process " +
                                                        std::to_string(client->process) +
                                                        ": a child of it connects a client of its own"});
    {
      const std::lock_guard lock(client->mutex);
      if (client->closed) return Code({StatusCode::kFailedPrecondition, "the client was closed"});
      ++client->calls;
    }
    const int32_t code = Guarded([&] { return body(*client->client); });
    std::unique_lock lock(client->mutex);
    --client->calls;
    End(client, std::move(lock));
    return code;
  });
}

int32_t Give(const json& object, char** out) {
  if (out == nullptr) return Invalid("there is no place for the text");
  const std::string text = object.dump(-1, ' ', false, json::error_handler_t::replace);
  *out = static_cast<char*>(std::malloc(text.size() + 1));
  if (*out == nullptr) return Code({StatusCode::kResourceExhausted, "no memory for a text"});
  std::memcpy(*out, text.c_str(), text.size() + 1);
  return LONGHAUL_OK;
}

int32_t NoSettings() { return Invalid("there are settings, and their memory is null"); }

// Ok, or that what has a length has no memory, or that its type is unknown, or that what is converted before
// the tensor's length is looked at has another one.
Status CheckMemory(const longhaul_tensor* tensor, const void* memory, uint64_t count, int32_t dtype) {
  if (dtype < LONGHAUL_FLOAT32 || dtype > LONGHAUL_FLOAT16)
    return {StatusCode::kInvalidArgument, "dtype " + std::to_string(dtype) + " is none of the LONGHAUL_*"};
  if (memory == nullptr) return {StatusCode::kInvalidArgument, "the memory of the elements is null"};
  if (dtype == LONGHAUL_FLOAT32 && count <= std::numeric_limits<size_t>::max() / sizeof(float)) return {};
  if (tensor != nullptr && count == tensor->tensor.count()) return {};
  return {StatusCode::kInvalidArgument,
          "the tensor has not as many elements as are given, " + std::to_string(count)};
}

// The caller's elements as float32, for as long as `borrowed` lives.
std::span<const float> Input(const void* memory, uint64_t count, int32_t dtype, Borrowed* borrowed) {
  if (dtype == LONGHAUL_FLOAT32) return {static_cast<const float*>(memory), count};
  borrowed->gradient.resize(count);
  Dequantize(static_cast<longhaul::DType>(dtype), ByteSpan(static_cast<const uint8_t*>(memory), 2 * count), 0,
             longhaul::codec::Apply::kSet, 1, borrowed->gradient);
  return borrowed->gradient;
}

std::span<float> Output(void* memory, uint64_t count, int32_t dtype, Borrowed* borrowed) {
  if (dtype == LONGHAUL_FLOAT32) return {static_cast<float*>(memory), count};
  borrowed->values.resize(count);
  borrowed->out = memory;
  borrowed->dtype = static_cast<longhaul::DType>(dtype);
  return borrowed->values;
}

// Begins an operation, once there is memory for its handle. Values in another type are written before it has
// ended.
template <typename Start>
int32_t Begin(longhaul_operation** out, const Start& start) {
  auto handle = std::make_unique<longhaul_operation>();
  handle->operation = start(handle->borrowed.get());
  try {
    handle->operation.Then([borrowed = handle->borrowed](const Status& how) {
      if (how.ok() && borrowed->out != nullptr) {
        Quantize(
            borrowed->dtype, borrowed->values, 0, longhaul::codec::Rounding::Nearest(),
            longhaul::MutableByteSpan(static_cast<uint8_t*>(borrowed->out), 2 * borrowed->values.size()));
      }
      borrowed->how = how;
      borrowed->ended = true;
    });
  } catch (const std::bad_alloc&) {
    (void)handle->operation.Wait();  // it has begun, and borrows
    throw;
  }
  *out = handle.release();
  return LONGHAUL_OK;
}

longhaul::PushOptions OptionsOf(float weight) {
  longhaul::PushOptions options;
  if (weight != 0) options.weight = weight;
  return options;
}

json StatsJson(const OperationStats& s) {
  json object = {{"round", s.round},
                 {"pushed_round", s.pushed_round},
                 {"bytes", s.bytes.value()},
                 {"wire_bytes", s.wire_bytes.value()},
                 {"chunks_sent", s.chunks_sent},
                 {"chunks_received", s.chunks_received},
                 {"retransmissions", s.retransmissions},
                 {"repairs_sent", s.repairs_sent},
                 {"repaired_chunks", s.repaired_chunks},
                 {"lost_chunks", s.lost_chunks},
                 {"lost_result_chunks", s.lost_result_chunks},
                 {"rtt_ms", std::chrono::duration<double, std::milli>(s.rtt).count()},
                 {"seconds", s.seconds}};
  if (s.round_info) {
    const OperationStats::RoundInfo& r = *s.round_info;
    object["report"] = {{"last_rank", r.last_rank},
                        {"contributors", r.contributors},
                        {"repaired_chunks", r.repaired_chunks},
                        {"filled_chunks", r.filled_chunks},
                        {"tolerated_chunks", r.tolerated_chunks},
                        {"rejected_chunks", r.rejected_chunks},
                        {"fill_reason", r.fill_reason},
                        {"excluded", r.excluded},
                        {"low_chunks", r.low_chunks},
                        {"low_lost", r.low_lost},
                        {"lost_chunks", r.lost_chunks},
                        {"loss", r.loss}};
  }
  return object;
}

}  // namespace

extern "C" {

int32_t longhaul_c_api() { return LONGHAUL_C_API; }
const char* longhaul_version() { return LONGHAUL_VERSION; }

const char* longhaul_code_name(int32_t code) {
  if (code < LONGHAUL_OK || code > LONGHAUL_AEAD_LIMIT_REACHED) return "Unknown";
  return longhaul::StatusCodeName(static_cast<StatusCode>(code)).data();  // of literals
}

const char* longhaul_last_error() { return LastError().c_str(); }
void longhaul_free(char* text) { std::free(text); }

int32_t longhaul_connect(const char* const* settings, size_t count, longhaul_log log, void* user,
                         longhaul_client** out) {
  return Guarded([&] {
    if (out == nullptr) return Invalid("there is no place for the client");
    *out = nullptr;
    if (settings == nullptr && count > 0) return NoSettings();
    Result<ConnectOptions> options = longhaul::c::ParseConnect({settings, count});
    if (!options.ok()) return Code(options.status());
    if (log != nullptr) {
      options->log = [log, user](longhaul::LogLevel level, std::string_view text) {
        log(user, static_cast<int32_t>(level), std::string(text).c_str());
      };
    }
    Result<Client> client = Client::Connect(*options);
    if (!client.ok()) return Code(client.status());
    *out = new longhaul_client(*std::move(client));
    return static_cast<int32_t>(LONGHAUL_OK);
  });
}

int32_t longhaul_leave(longhaul_client* client, int32_t code, const char* why) {
  return With(client, [&](Client& connected) {
    if (code < LONGHAUL_OK || code > LONGHAUL_AEAD_LIMIT_REACHED) return Invalid("the code is none");
    return Code(connected.Leave(
        code == LONGHAUL_OK ? Status() : Status(static_cast<StatusCode>(code), why == nullptr ? "" : why)));
  });
}

void longhaul_close(longhaul_client* client) {
  if (client == nullptr || client->process != ::getpid()) return;
  std::unique_lock lock(client->mutex);
  if (client->closed) return;
  client->closed = true;
  if (client->calls > 0) {  // what waits in it ends; the last of them frees the client
    ++client->calls;
    lock.unlock();
    (void)Guarded([client] {
      return Code(client->client->Leave({StatusCode::kCancelled, "the client was closed"}));
    });
    lock.lock();
    --client->calls;
  }
  End(client, std::move(lock));
}

void longhaul_destroy(longhaul_client* client) {
  if (client == nullptr || client->process != ::getpid()) return;
  longhaul_close(client);
  delete client;
}

int32_t longhaul_rank(longhaul_client* client, uint32_t* out) {
  return With(client, [&](Client& connected) {
    if (out == nullptr) return Invalid("there is no place for the number");
    *out = connected.rank();
    return static_cast<int32_t>(LONGHAUL_OK);
  });
}

int32_t longhaul_world_size(longhaul_client* client, uint32_t* out) {
  return With(client, [&](Client& connected) {
    if (out == nullptr) return Invalid("there is no place for the number");
    *out = connected.world_size();
    return static_cast<int32_t>(LONGHAUL_OK);
  });
}

int32_t longhaul_status(longhaul_client* client) {
  return With(client, [&](Client& connected) { return Code(connected.status()); });
}

int32_t longhaul_stats(longhaul_client* client, char** out) {
  return With(client, [&](Client& connected) {
    return Give(longhaul::CountersJson<longhaul::ClientStats>(longhaul::kClientCounters, connected.stats()),
                out);
  });
}

int32_t longhaul_settings(longhaul_client* client, char** out) {
  return With(client, [&](Client& connected) { return Give(json(connected.settings()), out); });
}

int32_t longhaul_membership(longhaul_client* client, char** out) {
  return With(client, [&](Client& connected) {
    const longhaul::Membership m = connected.membership();
    return Give({{"epoch", m.epoch},
                 {"ranks", m.ranks},
                 {"shard_index", m.shard_index},
                 {"shard_count", m.shard_count}},
                out);
  });
}

int32_t longhaul_declare(longhaul_client* client, const char* name, uint64_t count,
                         const char* const* settings, size_t settings_count, const float* initial,
                         longhaul_tensor** out) {
  return With(client, [&](Client& connected) {
    if (name == nullptr || out == nullptr) return Invalid("the name or the place for the tensor is null");
    *out = nullptr;
    if (settings == nullptr && settings_count > 0) return NoSettings();
    Result<TensorOptions> options = longhaul::c::ParseTensor({settings, settings_count});
    if (!options.ok()) return Code(options.status());
    options->count = count;
    if (initial != nullptr) {
      if (Status memory = CheckMemory(nullptr, initial, count, LONGHAUL_FLOAT32); !memory.ok())
        return Code(memory);
      options->initial = {initial, count};
    }
    Result<Tensor> tensor = connected.Declare(name, *options);
    if (!tensor.ok()) return Code(tensor.status());
    const std::lock_guard lock(client->mutex);
    *out = &client->tensors.emplace_back(longhaul_tensor{*std::move(tensor)});
    return static_cast<int32_t>(LONGHAUL_OK);
  });
}

int32_t longhaul_set_scores(longhaul_client* client, const longhaul_tensor* tensor, const float* scores,
                            size_t count) {
  return With(client, [&](Client& connected) {
    if (tensor == nullptr || scores == nullptr) return Invalid("the tensor or the scores are null");
    return Code(connected.SetScores(tensor->tensor, {scores, count}));
  });
}

int32_t longhaul_clock(longhaul_client* client, const longhaul_tensor* tensor, char** out) {
  return With(client, [&](Client& connected) {
    if (tensor == nullptr) return Invalid("the tensor is null");
    const auto clock = connected.Clock(tensor->tensor);
    if (!clock.ok()) return Code(clock.status());
    return Give({{"own", clock->own},
                 {"slowest", clock->slowest},
                 {"fastest", clock->fastest},
                 {"members", clock->members}},
                out);
  });
}

int32_t longhaul_owed(longhaul_client* client, const longhaul_tensor* tensor, float* values, uint64_t count) {
  return With(client, [&](Client& connected) {
    if (tensor == nullptr || values == nullptr) return Invalid("the tensor or the values are null");
    return Code(connected.Owed(tensor->tensor, {values, count}));
  });
}

int32_t longhaul_push(longhaul_client* client, const longhaul_tensor* tensor, const void* gradient,
                      uint64_t count, int32_t dtype, float weight, longhaul_operation** out) {
  return With(client, [&](Client& connected) {
    if (tensor == nullptr || out == nullptr)
      return Invalid("the tensor or the place for the operation is null");
    if (Status memory = CheckMemory(tensor, gradient, count, dtype); !memory.ok()) return Code(memory);
    return Begin(out, [&](Borrowed* borrowed) {
      return connected.Push(tensor->tensor, Input(gradient, count, dtype, borrowed), OptionsOf(weight));
    });
  });
}

int32_t longhaul_pull(longhaul_client* client, const longhaul_tensor* tensor, void* values, uint64_t count,
                      int32_t dtype, uint64_t min_round, int64_t max_staleness, longhaul_operation** out) {
  return With(client, [&](Client& connected) {
    if (tensor == nullptr || out == nullptr)
      return Invalid("the tensor or the place for the operation is null");
    if (Status memory = CheckMemory(tensor, values, count, dtype); !memory.ok()) return Code(memory);
    if (max_staleness < -1 || max_staleness > std::numeric_limits<uint32_t>::max())
      return Invalid("max_staleness is -1 or a number of pushes");
    longhaul::PullOptions options;
    options.min_round = min_round;
    if (max_staleness >= 0) options.max_staleness = static_cast<uint32_t>(max_staleness);
    return Begin(out, [&](Borrowed* borrowed) {
      return connected.Pull(tensor->tensor, Output(values, count, dtype, borrowed), options);
    });
  });
}

int32_t longhaul_push_pull(longhaul_client* client, const longhaul_tensor* tensor, const void* gradient,
                           void* values, uint64_t count, int32_t dtype, float weight,
                           longhaul_operation** out) {
  return With(client, [&](Client& connected) {
    if (tensor == nullptr || out == nullptr)
      return Invalid("the tensor or the place for the operation is null");
    for (const void* memory : {gradient, static_cast<const void*>(values)}) {
      if (Status checked = CheckMemory(tensor, memory, count, dtype); !checked.ok()) return Code(checked);
    }
    return Begin(out, [&](Borrowed* borrowed) {
      const auto in = Input(gradient, count, dtype, borrowed);
      return connected.PushPull(tensor->tensor, in, Output(values, count, dtype, borrowed),
                                OptionsOf(weight));
    });
  });
}

int32_t longhaul_wait(longhaul_operation* operation, double seconds) {
  return Guarded([&] {
    if (operation == nullptr) return Invalid("the operation is null");
    if (std::isnan(seconds)) return Invalid("the time to wait is not a number");
    if (operation->process != ::getpid() && !operation->borrowed->ended) return OfParent();
    // It has ended before all callbacks have run, and WaitFor waits for those.
    const Borrowed& borrowed = *operation->borrowed;
    if (borrowed.ended) return Code(borrowed.how);
    const bool limited = seconds >= 0 && seconds < 31'536'000;  // a year is no limit
    const auto limit = std::chrono::duration<double>(limited ? seconds : 0);
    const Status how =
        limited ? operation->operation.WaitFor(std::chrono::duration_cast<longhaul::Duration>(limit))
                : operation->operation.Wait();
    return Code(borrowed.ended ? borrowed.how : how);
  });
}

int32_t longhaul_then(longhaul_operation* operation, longhaul_callback then, void* user) {
  return Guarded([&] {
    if (operation == nullptr || then == nullptr) return Invalid("the operation or the callback is null");
    if (operation->process != ::getpid()) return OfParent();
    operation->operation.Then([then, user](const Status& how) { then(user, Code(how)); });
    LastError().clear();
    return static_cast<int32_t>(LONGHAUL_OK);
  });
}

int32_t longhaul_done(const longhaul_operation* operation) {
  return operation != nullptr && operation->borrowed->ended ? 1 : 0;
}

int32_t longhaul_operation_stats(const longhaul_operation* operation, char** out) {
  return Guarded([&] {
    if (operation == nullptr || out == nullptr) return Invalid("the operation is null");
    if (operation->process != ::getpid()) return OfParent();  // another thread may have held its lock
    return Give(StatsJson(operation->operation.stats()), out);
  });
}

void longhaul_release(longhaul_operation* operation) { delete operation; }

int32_t longhaul_barrier(longhaul_client* client, const char* name) {
  return With(client, [&](Client& connected) {
    if (name == nullptr) return Invalid("the name is null");
    return Code(connected.Barrier(name));
  });
}

int32_t longhaul_save_state(longhaul_client* client, const void* blob, size_t size) {
  return With(client, [&](Client& connected) {
    if (blob == nullptr && size > 0) return Invalid("the blob is null");
    return Code(connected.SaveState({static_cast<const std::byte*>(blob), size}));
  });
}

int32_t longhaul_loaded_state(longhaul_client* client, void* blob, size_t capacity, size_t* size) {
  return With(client, [&](Client& connected) {
    if (size == nullptr) return Invalid("there is no place for the size");
    const std::vector<std::byte> state = connected.LoadedState();
    *size = state.size();
    if (blob != nullptr) std::memcpy(blob, state.data(), std::min(capacity, state.size()));
    return static_cast<int32_t>(LONGHAUL_OK);
  });
}

}  // extern "C"
