// The exchange of the learning bench (exchange.h) for trainers that are not C++: models.py. All functions of
// one exchange are called by one thread at a time.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct longhaul_exchange longhaul_exchange;

typedef struct longhaul_exchange_stats {  // over all rounds and workers
  uint64_t high_chunks;
  uint64_t low_chunks;
  uint64_t low_lost;
  uint64_t filled;
} longhaul_exchange_stats;

// What the last call that failed in this thread has to say. Never null; valid until the next failure.
const char* longhaul_exchange_error(void);

// scenario: a Scenario as JSON (scenario.h), of synchronous rounds in which all its workers take part and
// none lies. counts: elements of each tensor. initial: their values. Null: failed.
longhaul_exchange* longhaul_exchange_create(const char* scenario, uint32_t tensors, const uint64_t* counts,
                                            const float* const* initial);
// Null is nothing.
void longhaul_exchange_destroy(longhaul_exchange* exchange);

// One round. gradients[rank * tensors + tensor]; each element finite, and of a magnitude of at most 1e18. 0,
// or 1: failed, and nothing was exchanged.
int longhaul_exchange_round(longhaul_exchange* exchange, const float* const* gradients);
// A tensor as workers have it. count: its elements. 0, or 1: failed.
int longhaul_exchange_parameters(longhaul_exchange* exchange, uint32_t tensor, float* values, uint64_t count);
// What the server has not taken of a rank's gradients of a tensor. count: its elements. 0, or 1: failed.
int longhaul_exchange_owed(longhaul_exchange* exchange, uint32_t rank, uint32_t tensor, float* values,
                           uint64_t count);
// 0, or 1: failed.
int longhaul_exchange_statistics(const longhaul_exchange* exchange, longhaul_exchange_stats* stats);

#ifdef __cplusplus
}
#endif
