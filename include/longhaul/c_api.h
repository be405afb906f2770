/* The worker's end in C99, for other languages: what longhaul/client.h does, with handles and codes.
 *
 *   const char* settings[] = {"join=127.0.0.1:7700", "rank=0", "world-size=2", "key=job.key"};
 *   longhaul_client* client = NULL;
 *   if (longhaul_connect(settings, 4, NULL, NULL, &client) != LONGHAUL_OK) puts(longhaul_last_error());
 *
 * A setting is "NAME=VALUE" with the name and the values of an option of longhaul-worker or of a field named
 * below; what is not given comes from the environment as it does for longhaul-worker: LONGHAUL_<NAME>, then
 * what torchrun, Open MPI and ps-lite set.
 *
 * Every function that can fail returns a code, and longhaul_last_error says more. Nothing aborts the caller
 * and no exception leaves. A null handle is LONGHAUL_INVALID_ARGUMENT.
 *
 * Threads: any function from any thread, but longhaul_destroy and longhaul_release only when no other is in
 * one of the same handle. A client does not survive fork: in the child every function of it and of its
 * operations is LONGHAUL_FAILED_PRECONDITION. Memory given to an operation is borrowed until it is done.
 *
 * Stability: what is here keeps its meaning while LONGHAUL_C_API stays; functions and names of settings may
 * be added. */
#ifndef LONGHAUL_C_API_H_
#define LONGHAUL_C_API_H_

#include <stddef.h> /* NOLINT: C */
#include <stdint.h> /* NOLINT: C */

#ifdef __cplusplus
extern "C" {
#endif

#define LONGHAUL_C_API 1

typedef struct longhaul_client longhaul_client;
typedef struct longhaul_tensor longhaul_tensor;
typedef struct longhaul_operation longhaul_operation;

/* longhaul::StatusCode; what each means is there (longhaul/status.h). */
enum {
  LONGHAUL_OK = 0,
  LONGHAUL_INVALID_ARGUMENT = 1,
  LONGHAUL_NOT_FOUND = 2,
  LONGHAUL_ALREADY_EXISTS = 3,
  LONGHAUL_FAILED_PRECONDITION = 4,
  LONGHAUL_RESOURCE_EXHAUSTED = 5,
  LONGHAUL_UNAVAILABLE = 6,
  LONGHAUL_DEADLINE_EXCEEDED = 7,
  LONGHAUL_PROTOCOL_VIOLATION = 8,
  LONGHAUL_PERMISSION_DENIED = 9,
  LONGHAUL_CANCELLED = 10,
  LONGHAUL_ABORTED = 11,
  LONGHAUL_DATA_LOSS = 12,
  LONGHAUL_VERSION_MISMATCH = 13,
  LONGHAUL_PEER_DEAD = 14,
  LONGHAUL_SETTINGS_MISMATCH = 15,
  LONGHAUL_INTERNAL = 16,
  LONGHAUL_AEAD_LIMIT_REACHED = 17
};

/* Element types of memory that is given to operations. 16-bit ones become float32 when the operation begins,
 * and results are rounded to the nearest. What travels is the tensor's "wire-dtype", and its "result-dtype"
 * back. */
enum { LONGHAUL_FLOAT32 = 0, LONGHAUL_BFLOAT16 = 1, LONGHAUL_FLOAT16 = 2 };

/* LONGHAUL_C_API of the library, and its version as text. */
int32_t longhaul_c_api(void);
const char* longhaul_version(void);
/* "PeerDead" of LONGHAUL_PEER_DEAD; "Unknown" of what is no code. */
const char* longhaul_code_name(int32_t code);
/* What the last function of this thread that gives a code had to say; empty when it did not fail. Valid until
 * the next one. Never null. */
const char* longhaul_last_error(void);
/* Of a text that a function has given. Null is fine. */
void longhaul_free(char* text);

/* Lines of the library: level 0 debug, 1 information, 2 warning. Called on any thread; must not block. */
typedef void (*longhaul_log)(void* user, int32_t level, const char* text);

/* Joins a job. Names of settings: those of longhaul-worker for the connection (join, offload, site-rank,
 * rank, world-size, job, site, incarnation, weight, datagram-size, rate-controller, rate-cap, rate-floor,
 * idle-timeout, connect-timeout, wait-timeout, reconnect-timeout, state-dir, key, server-name, cipher,
 * insecure, fault). Of LONGHAUL_INSECURE the value is the address that it holds for: that of
 * another server is not joined by it. `log` may be null. Errors: those of Client::Connect, and
 * LONGHAUL_INVALID_ARGUMENT for an unknown name or a bad value, by name. */
int32_t longhaul_connect(const char* const* settings, size_t count, longhaul_log log, void* user,
                         longhaul_client** out);
/* The orderly end. code and why other than LONGHAUL_OK and null: this worker did not finish. */
int32_t longhaul_leave(longhaul_client* client, int32_t code, const char* why);
/* Ends what is pending and what other threads wait for with LONGHAUL_CANCELLED, and the client; every other
 * function of it is LONGHAUL_FAILED_PRECONDITION from now on. Called from a callback of the client while
 * another thread waits in it, it ends the client when that call has ended. In a child of fork it does
 * nothing. Null is fine, and so is a second time. */
void longhaul_close(longhaul_client* client);
/* Closes it and frees the handle and its tensors, not its operations. */
void longhaul_destroy(longhaul_client* client);

int32_t longhaul_rank(longhaul_client* client, uint32_t* rank);
int32_t longhaul_world_size(longhaul_client* client, uint32_t* world_size);
/* Ok while the client works, else why not. */
int32_t longhaul_status(longhaul_client* client);
/* JSON objects: ClientStats (docs/reference/counters.md), JobSpec (docs/reference/options.md), and
 * {"epoch", "ranks", "shard_index", "shard_count"}. Freed by longhaul_free. */
int32_t longhaul_stats(longhaul_client* client, char** json);
int32_t longhaul_settings(longhaul_client* client, char** json);
int32_t longhaul_membership(longhaul_client* client, char** json);

/* Makes a tensor of `count` elements known, or finds it. Names of settings: wire-dtype, result-dtype,
 * priority, optimizer, high-share, high-energy, high (FIRST:COUNT, elements that always travel reliably; may
 * be repeated), topk-share, staleness, quorum. `initial` is count float32 values, or null: zeros. The tensor
 * is the client's and is freed with it. Errors: those of Client::Declare, and bad settings by name. */
int32_t longhaul_declare(longhaul_client* client, const char* name, uint64_t count,
                         const char* const* settings, size_t settings_count, const float* initial,
                         longhaul_tensor** out);
/* One score for each of `count` equal parts of the tensor: see Client::SetScores. */
int32_t longhaul_set_scores(longhaul_client* client, const longhaul_tensor* tensor, const float* scores,
                            size_t count);
/* {"own", "slowest", "fastest", "members"}: pushes of the tensor that have counted, and of how many. */
int32_t longhaul_clock(longhaul_client* client, const longhaul_tensor* tensor, char** json);

/* What the server has not taken of this worker's gradients: see Client::Owed. `count` float32 values. */
int32_t longhaul_owed(longhaul_client* client, const longhaul_tensor* tensor, float* values, uint64_t count);

/* Contribute, fetch, and both: see Client::Push, Pull and PushPull. `count` elements of `dtype`. weight: of
 * this contribution; 0: the connection's. max_staleness -1: waits for no other worker. An operation that
 * could begin is given even where it fails later: its code is longhaul_wait's. */
int32_t longhaul_push(longhaul_client* client, const longhaul_tensor* tensor, const void* gradient,
                      uint64_t count, int32_t dtype, float weight, longhaul_operation** out);
int32_t longhaul_pull(longhaul_client* client, const longhaul_tensor* tensor, void* values, uint64_t count,
                      int32_t dtype, uint64_t min_round, int64_t max_staleness, longhaul_operation** out);
int32_t longhaul_push_pull(longhaul_client* client, const longhaul_tensor* tensor, const void* gradient,
                           void* values, uint64_t count, int32_t dtype, float weight,
                           longhaul_operation** out);
/* Waits at most `seconds` (negative: without a limit) and says how the operation ended. While longhaul_done
 * is 0 after it, LONGHAUL_DEADLINE_EXCEEDED says that it goes on. */
int32_t longhaul_wait(longhaul_operation* operation, double seconds);
/* 1 when it has ended and borrows nothing, else 0. */
int32_t longhaul_done(const longhaul_operation* operation);
/* Calls `then` once with the outcome: on a thread of the library, where nothing may wait, or at once on the
 * caller's when the operation has ended already. longhaul_done is 1 then. */
typedef void (*longhaul_callback)(void* user, int32_t code);
int32_t longhaul_then(longhaul_operation* operation, longhaul_callback then, void* user);
/* OperationStats as a JSON object; zeros until done. */
int32_t longhaul_operation_stats(const longhaul_operation* operation, char** json);
/* Frees the handle; what is pending goes on, and goes on borrowing. Null is fine. */
void longhaul_release(longhaul_operation* operation);

/* Waits until every worker has arrived at the barrier of this name. */
int32_t longhaul_barrier(longhaul_client* client, const char* name);
/* Keeps what this worker owes, and `size` bytes of the program's, in "state-dir": Client::SaveState. */
int32_t longhaul_save_state(longhaul_client* client, const void* blob, size_t size);
/* What the last process kept: writes at most `capacity` bytes and gives the size of all. */
int32_t longhaul_loaded_state(longhaul_client* client, void* blob, size_t capacity, size_t* size);

#ifdef __cplusplus
}
#endif

#endif
