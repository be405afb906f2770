/* Optimizers and aggregations of the user's at the server, in C99: for a shared object that longhaul-server
 * loads (--plugin), or for a program with a server inside (ServerOptions::plugins). The built-in ones are
 * written by it too (codec/policy/optimizer.cc); examples/plugin_sgd is a whole one,
 * docs/howto/your_own_optimizer.md goes through it. A worker names one as it names a built-in one:
 * optimizer=NAME:key=value,...
 *
 *   static int32_t step(const longhaul_step* s) {
 *     const float lr = (float)(s->settings[0] * s->rate);
 *     for (uint64_t i = 0; i < s->count; ++i) s->updated[i] = s->values[i] - lr * s->gradient[i];
 *     return 0;
 *   }
 *   static const longhaul_setting settings[] = {{"lr", "0.1", 0, 0, LONGHAUL_SETTING_REQUIRED}};
 *   static const longhaul_optimizer plain = {.name = "plain", .settings = settings, .setting_count = 1, .step
 * = step};
 *   static const longhaul_optimizer* const optimizers[] = {&plain};
 *   static const longhaul_plugin plugin = {LONGHAUL_PLUGIN_API, 1, optimizers, 0, 0};
 *   const longhaul_plugin* longhaul_get_plugin(void) { return &plugin; }
 *
 * Threads: every server of the process calls it, each in a thread of its own and several at the same time.
 * What is kept from step to step is in `state`, which the server allocates, puts in checkpoints and the round
 * log and gives back after a restart; a function keeps nothing elsewhere, and needs no memory of its own.
 *
 * Trust: it runs in the server's process and can do all that the server can. What it returns is checked, what
 * it writes outside of its arrays is not.
 *
 * All that is pointed at stays as it is until the process ends. Members that are not set are zero. */
#ifndef LONGHAUL_PLUGIN_API_H_
#define LONGHAUL_PLUGIN_API_H_

#include <stdint.h> /* NOLINT: C */

#ifdef __cplusplus
extern "C" {
#endif

/* Another number is refused: it counts on when a member is added or changes its meaning. */
#define LONGHAUL_PLUGIN_API 1

#define LONGHAUL_MAX_SETTINGS 32 /* of an optimizer */
#define LONGHAUL_MAX_STATE 8     /* arrays of an optimizer */
#define LONGHAUL_PREPARED 16     /* numbers that prepare may give */

enum {
  LONGHAUL_SETTING_REQUIRED = 1, /* a text without it is refused */
  LONGHAUL_SETTING_POSITIVE = 2, /* zero is refused, also what is zero as a float */
  LONGHAUL_SETTING_FLAG = 4      /* stands in a text without a value; 0 or 1 */
};

/* "NAME=VALUE" in an optimizer's text: a finite number, 0 or more. */
typedef struct longhaul_setting {
  const char* name;   /* a-z 0-9 _, 1..32 bytes */
  const char* sample; /* for messages: "0.1". Of a flag null */
  double fallback;    /* where the text does not say it; in the bounds */
  double below;       /* the value is smaller; 0: any float */
  uint32_t flags;     /* LONGHAUL_SETTING_... */
} longhaul_setting;

/* A step over the elements first..first+count-1 of a tensor: one chunk of it. Chunks come in any order, each
 * element once in a round. Every array has `count` elements and is aligned to 4 bytes. */
typedef struct longhaul_step {
  const double* settings; /* in the order of the optimizer's table */
  double rate;            /* the learning rate counts so many times, for schedules; 1 at a server */
  /* Of the tensor, this one included: 1, 2, ... With staleness other than 0 (below) the sum of the shares. */
  double steps;
  /* 1: a step of all workers. Less, with LONGHAUL_OPTIMIZER_PARTS only: of workers with this share of the
   * weight, 0..1, whose gradient is the sum over them by the weight of all. Such steps, whose shares come to
   * 1, are to move the values about as far as one of all; of share 0 nothing changes. */
  double share;
  const double* prepared; /* by prepare, else zeros */
  uint64_t first;
  uint64_t count;
  const float* gradient; /* the workers' mean, by the job's aggregation and loss policy */
  const float* values;   /* before the step; not in the same memory as `updated` */
  float* updated;        /* to be written, all of it */
  /* The optimizer's arrays before the step, zero before the first one, and after it: to be written, all of
   * them. state[k] and new_state[k] may be the same memory: read an element before you write it. */
  const float* const* state;
  float* const* new_state;
} longhaul_step;

enum {
  LONGHAUL_OPTIMIZER_PARTS = 1 /* knows of shares below 1; else it is refused with staleness other than 0 */
};

typedef struct longhaul_optimizer {
  const char* name; /* a-z 0-9 _, 1..32 bytes */
  const longhaul_setting* settings;
  uint32_t setting_count;
  /* Names of the arrays that it keeps beside the values: a-z 0-9 _, 1..32 bytes, in checkpoints
   * "momentum_buffer.w" of tensor "w". A restart takes what has the same names. */
  const char* const* state;
  uint32_t state_count;
  uint32_t flags; /* LONGHAUL_OPTIMIZER_... */
  /* How many of the state's names these settings need, the first ones. Null: all. */
  uint32_t (*states)(const double* settings);
  /* What does not go together in these settings, for people; null: all is fine. A text that stays. May be
   * null. */
  const char* (*check)(const double* settings);
  /* Numbers for the step's `prepared` that depend on settings, rate, steps and share alone: called when one
   * of them has changed, not for each chunk. The other members are zero. May be null. */
  void (*prepare)(const longhaul_step* step, double* prepared);
  /* 0, or a code of its own: the job ends with kAborted, which names it, and the server goes on. So it is
   * when values become infinite or NaN that were neither. Must not block. */
  int32_t (*step)(const longhaul_step* step);
} longhaul_optimizer;

/* What the workers have pushed of a chunk: elements first..first+count-1 of a tensor. */
typedef struct longhaul_contributions {
  uint64_t first;
  uint64_t count;
  uint32_t contributors; /* 1 or more */
  uint32_t liars; /* of the round's workers those that may lie, by the job's liar_share; fewer than half */
  /* By contributor: ranks, which rise, what each counts for in a mean, and `count` finite values each. */
  const uint32_t* ranks;
  const float* weights;
  const float* const* values;
  void* scratch; /* as many bytes as `scratch` says, aligned for a double, of any content */
} longhaul_contributions;

/* How the contributions to a chunk become one value for each element (--plugin-aggregation NAME). A loss
 * policy takes it for the mean of those that are here. All of a chunk's contributions are held until the last
 * is here, as with the built-in ones (server/tensor/robust_mean.cc), under whose rules it is as well: policy
 * zero, count or stale, and synchronous rounds of all. */
typedef struct longhaul_aggregation {
  const char* name; /* a-z 0-9 _, 1..32 bytes */
  /* Bytes of memory that a call needs for itself, 16 MiB at most. Null: none. */
  uint64_t (*scratch)(uint64_t count, uint32_t contributors, uint32_t liars);
  /* Writes all `count` elements of `out`. 0, or a code of its own, as of a step; so it is with values that
   * are not finite. Must not block. */
  int32_t (*aggregate)(const longhaul_contributions* in, float* out);
} longhaul_aggregation;

typedef struct longhaul_plugin {
  int32_t api; /* LONGHAUL_PLUGIN_API. The first member for good: nothing else is read of another number. */
  uint32_t optimizer_count;
  const longhaul_optimizer* const* optimizers;
  uint32_t aggregation_count;
  const longhaul_aggregation* const* aggregations;
} longhaul_plugin;

/* What a shared object defines, and the only thing that is looked for in it. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const longhaul_plugin*
longhaul_get_plugin(void);

#ifdef __cplusplus
}
#endif

#endif /* LONGHAUL_PLUGIN_API_H_ */
