// The worker's end of a parameter server: declare tensors, push gradients, pull what became of them.
//
//   auto client = longhaul::Client::Connect({.servers = {"127.0.0.1:7700"}, .key_file = "job.key"});
//   if (!client.ok()) return client.status();
//   auto w = client->Declare("w", {.count = n, .optimizer = "sgd:lr=0.1"});
//   longhaul::Operation step = client->PushPull(*w, gradient, weights);
//   longhaul::Status status = step.Wait();
//
// Every wait ends: when the server dies, falls silent for the idle time-out or ends the job, everything
// pending completes with a Status that names the server and the reason. What waits for other workers ends
// with their names after ConnectOptions::wait_timeout, and rounds go on without workers that do nothing
// (JobSpec::round_patience).
//
// A push is *acknowledged* when its operation has completed Ok at the worker. An acknowledged push counts,
// once; one that is pending may be sent again, and then counts once as well. What it counts in is a round of
// all workers, or, where JobSpec::staleness is not 0, the steps that are made while it comes.
//
// Threads: every method may be called from any thread, but a client must not be moved, assigned to or
// destroyed while another thread is in a method of it. A client has one background thread for each server;
// several clients may live in a process. Spans given to an operation are borrowed until it is done.
//
// Callbacks (Then, the log, on_membership) run on a background thread: they must not block, and what waits is
// refused there (kFailedPrecondition). They may start operations and destroy the client. An exception that
// leaves one is logged, counted (ClientStats::callbacks_threw) and ignored.
//
// No argument ends the process: what cannot work is kInvalidArgument. An object that was moved from does
// nothing: kFailedPrecondition, zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "longhaul/membership.h"
#include "longhaul/options.h"
#include "longhaul/stats.h"
#include "longhaul/status.h"
#include "longhaul/tensor.h"
#include "longhaul/units.h"

namespace longhaul {

namespace internal {
struct OperationState;
class ClientImpl;
}  // namespace internal

// Something that is on its way. A cheap handle: copies name the same operation, which goes on when they are
// gone. One that was moved from is like one made by Operation().
class Operation {
 public:
  // An operation that is already done with kFailedPrecondition; assign a real one to it.
  Operation() = default;

  // Waits for the end and says how it ended. From any number of threads; in a callback of any client or
  // server it does not wait: kFailedPrecondition unless the operation is done.
  Status Wait() const;
  // The same, for at most `limit` (negative: none); then kDeadlineExceeded, and the operation goes on.
  Status WaitFor(Duration limit) const;
  bool done() const;
  // Calls `callback` once with the outcome: on the client's background thread, or at once on the caller's
  // when the operation is done already (an exception of it reaches the caller then). Callbacks given before
  // the end have run when Wait returns. An empty one is ignored.
  void Then(std::function<void(const Status&)> callback) const;
  // Zeros until done.
  OperationStats stats() const;

 private:
  friend class internal::ClientImpl;
  explicit Operation(std::shared_ptr<internal::OperationState> state) : state_(std::move(state)) {}
  std::shared_ptr<internal::OperationState> state_;
};

// A tensor that the server knows. Copyable; of use only with the client that declared it.
class Tensor {
 public:
  Tensor() = default;
  const std::string& name() const { return name_; }
  uint64_t count() const { return count_; }
  DType dtype() const { return dtype_; }

 private:
  friend class internal::ClientImpl;
  std::string name_;
  uint64_t count_ = 0;
  DType dtype_ = DType::kFloat32;
  uint32_t handle_ = UINT32_MAX;
  bool has_optimizer_ = false;
  const void* owner_ = nullptr;
};

// One worker of a job. Operations and waits end with the errors that their methods name, and with
//   kInvalidArgument     the tensor is another client's, or was never declared; a span has a length and no
//                        memory
//   kResourceExhausted   4096 operations are pending already
//   kFailedPrecondition  after Leave, or after the orderly end of the job; the client was moved from
//   kCancelled           pending when Leave was given an error, or when the client was destroyed
//   kAborted             pending when the server ended the job
//   kDeadlineExceeded    another worker has not come within ConnectOptions::wait_timeout
//   else                 what status() says: the client has failed
// Connect, Declare, Clock, SaveState, Barrier and Leave wait: in a callback they are kFailedPrecondition.
class Client {
 public:
  // Joins the job and returns once the server has accepted this worker (not yet all of its peers).
  // Errors: kInvalidArgument (options, content of the key file), kNotFound (no such key file or host),
  // kPermissionDenied (the key file belongs to another user, or its mode lets others use it, or its key is of
  // another job or role), kUnavailable (no answer comes from that address; no FEC library), kVersionMismatch
  // (both versions are named), kSettingsMismatch, kAlreadyExists (the rank is taken), kInternal (a system
  // call failed), or what else the server says.
  static Result<Client> Connect(const ConnectOptions& options);

  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  // Ends what is pending with kCancelled and closes the connection; returns within a second or two whatever
  // the network does. Call Leave first for an orderly end. In one of the client's own callbacks it returns at
  // once: no memory is borrowed any more, and what is pending ends on the background thread soon after.
  ~Client();

  // Makes a tensor known, or finds it. Waits until all workers of the job are in. Idempotent. Errors:
  // kSettingsMismatch (an earlier declaration of that name disagrees), kInvalidArgument (name, options; more
  // than 2^40 elements, or too large for one window), kResourceExhausted (a bound on tensors, the server's
  // max_model, or the scratch memory of a site's daemon), kAborted (the server did not take the initial
  // values).
  Result<Tensor> Declare(const std::string& name, const TensorOptions& options);

  // Contributes to the tensor's next round. Done when the server has taken the gradient; stats().round is the
  // round that it counts in. With staleness N it is done when it has counted and this worker is at most N
  // pushes ahead of the slowest member. Errors: kInvalidArgument (`gradient` does not hold exactly count()
  // float32 elements; one is not finite, or so large that the sum over world_size() workers of this weight
  // may not be: above FLT_MAX / 32 / world_size() / max(weight, 1); options.weight), kAborted (the round went
  // on without this worker). What the server's norm_guard refuses is in stats().round_info.
  Operation Push(const Tensor& tensor, std::span<const float> gradient, const PushOptions& options = {});
  // Fetches the parameters. Errors: kInvalidArgument (`out` does not hold exactly count() float32 elements),
  // kDeadlineExceeded (ConnectOptions::wait_timeout: which round has not come, or, with max_staleness, whose
  // pushes), kFailedPrecondition (max_staleness through a site; the tensor has no optimizer, so the server
  // keeps none).
  Operation Pull(const Tensor& tensor, std::span<float> out, const PullOptions& options = {});
  // Contributes to the next round and receives its result (updated parameters, or the aggregate), chunk by
  // chunk while others are still on their way: the fast path. `out` may be read when done. Errors: as Push
  // for `gradient` and Pull for the length of `out`; kInvalidArgument (`out` overlaps `gradient`). Operations
  // on one tensor take effect in the order of the calls. With several servers the call itself checks the
  // gradient, and stats() add up the tensor's parts (round: the lowest).
  Operation PushPull(const Tensor& tensor, std::span<const float> gradient, std::span<float> out,
                     const PushOptions& options = {});

  // Explicit priority: says what matters of the tensor, in place of the job's ranking. It is cut into
  // scores.size() equal parts (1..2^20, at most count), and a chunk counts as much as the highest score among
  // the parts that it has elements of; the chunks that count most are high (reliable, with FEC), as many as
  // the high share says. For example one score a row of a matrix. Holds from the next gradient that is not
  // under way yet, until the next call. Does not wait: Ok also after the client has failed. Errors:
  // kInvalidArgument (number of scores; negative or not finite ones; the tensor is another client's).
  Status SetScores(const Tensor& tensor, std::span<const float> scores);

  // Asks the server how many pushes of the tensor have counted. Waits for its answer. Errors: through a site
  // (ConnectOptions::offload) kFailedPrecondition, since the site is one member.
  Result<TensorClock> Clock(const Tensor& tensor);

  // What the server has not taken of this worker's gradients, and a later push brings (policy residual: what
  // was lost, rounded away or left out), by element into `out`. Zeros: nothing is owed, as with a policy that
  // forgets, and through a site, which owes it itself. A trainer of local steps that begins them at the
  // parameters without it counts no gradient twice. To be called when no push of the tensor is pending:
  // meanwhile its gradient is in it. Errors: kInvalidArgument (the tensor is another client's; the length of
  // `out`), kFailedPrecondition (in a callback), kUnavailable (the client's thread does not answer), or why
  // the client has failed. After an error `out` may be written in part.
  Status Owed(const Tensor& tensor, std::span<float> out);

  // Keeps in ConnectOptions::state_dir what this worker owes of its tensors and `blob`, which is the
  // program's (its place in the data, its own optimizer): in place of what the last call kept, on the disk
  // when this returns. To be called when no push is pending. After an error the last state that was kept is
  // there still. Errors: kFailedPrecondition (a push is pending, or began meanwhile; no state_dir),
  // kResourceExhausted (the disk is full; more than 2^30 bytes), kPermissionDenied, or what else the system
  // says of the file.
  Status SaveState(std::span<const std::byte> blob);
  // The blob that the last process with this state_dir and rank kept last, as Connect found it; empty: none.
  std::vector<std::byte> LoadedState() const;

  // Waits until every worker of the job has arrived at the barrier of this name. Errors: kInvalidArgument (a
  // name has 1..256 bytes, none a control character), kFailedPrecondition (this worker waits at it already),
  // kResourceExhausted (this worker has opened 64 that are not complete, or 4096 / world_size if that is
  // less; those that others have opened do not count).
  Status Barrier(const std::string& name);
  // The orderly end: waits for what is pending, tells the server, closes. Further calls fail. With an error
  // as `why` the server learns that this worker did not finish, and nothing pending is waited for. Ok, or why
  // the client has failed; kInvalidArgument (`why` has no code of StatusCode).
  Status Leave(const Status& why = Status::Ok());

  // Through a site (ConnectOptions::offload) of all its ranks: that of the site times the ranks of a site,
  // plus that within the site; and the sites times the ranks of a site, which are as many at each.
  uint32_t rank() const;
  uint32_t world_size() const;
  // Of the job, as the server has them.
  JobSpec settings() const;
  // Which workers are in, and this one's part of the data, as the server (with several: the first) said last.
  // ConnectOptions::on_membership is called when it changes. Through a site nothing is known: the site is one
  // member, and its ranks are as many as ever or fail.
  Membership membership() const;
  // Ok while the client works, else why it does not.
  Status status() const;
  ClientStats stats() const;
  // Whether the client does its work: its background thread answers. Waits for that, for 2 s at most; for a
  // probe of the program. True once the client has failed or left, which status() says.
  bool Answers() const;

 private:
  friend class internal::ClientImpl;
  explicit Client(std::shared_ptr<internal::ClientImpl> impl);
  std::shared_ptr<internal::ClientImpl> impl_;
};

}  // namespace longhaul
