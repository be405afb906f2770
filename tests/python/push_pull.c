/* A C99 program: every function of longhaul/c_api.h, and wrong use of it. ADDRESS of a server of one worker. */
#include <longhaul/c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                    \
  do {                                                                                                 \
    if (!(what)) {                                                                                     \
      fprintf(stderr, "line %d: %s (last error: %s)\n", __LINE__, #what, longhaul_last_error());       \
      exit(1);                                                                                         \
    }                                                                                                  \
  } while (0)
#define INVALID(what, words)                                                                           \
  do {                                                                                                 \
    CHECK((what) == LONGHAUL_INVALID_ARGUMENT);                                                        \
    CHECK(strstr(longhaul_last_error(), words) != NULL);                                               \
  } while (0)

static int lines = 0, calls = 0, outcome = -1;
static void log_line(void* user, int32_t level, const char* text) { ++*(int*)user, (void)level, (void)text; }
static void ended(void* user, int32_t code) { ++*(int*)user, outcome = code; }

static void refuse_nulls(void) {
  longhaul_client* none = NULL;
  char* text = NULL;
  size_t size = 0;
  INVALID(longhaul_connect(NULL, 0, NULL, NULL, NULL), "no place");
  INVALID(longhaul_leave(none, 0, NULL), "client is null");
  INVALID(longhaul_status(none), "client is null");
  INVALID(longhaul_stats(none, &text), "client is null");
  INVALID(longhaul_settings(none, &text), "client is null");
  INVALID(longhaul_membership(none, &text), "client is null");
  INVALID(longhaul_declare(none, "w", 1, NULL, 0, NULL, NULL), "client is null");
  INVALID(longhaul_set_scores(none, NULL, NULL, 0), "client is null");
  INVALID(longhaul_owed(none, NULL, NULL, 0), "client is null");
  INVALID(longhaul_clock(none, NULL, &text), "client is null");
  INVALID(longhaul_push(none, NULL, NULL, 0, 0, 0, NULL), "client is null");
  INVALID(longhaul_pull(none, NULL, NULL, 0, 0, 0, -1, NULL), "client is null");
  INVALID(longhaul_push_pull(none, NULL, NULL, NULL, 0, 0, 0, NULL), "client is null");
  INVALID(longhaul_wait(NULL, 1), "operation is null");
  INVALID(longhaul_then(NULL, ended, NULL), "operation or the callback");
  INVALID(longhaul_operation_stats(NULL, &text), "operation is null");
  INVALID(longhaul_barrier(none, "b"), "client is null");
  INVALID(longhaul_save_state(none, "x", 1), "client is null");
  INVALID(longhaul_loaded_state(none, NULL, 0, &size), "client is null");
  INVALID(longhaul_rank(none, NULL), "client is null");
  INVALID(longhaul_world_size(none, NULL), "client is null");
  CHECK(longhaul_done(NULL) == 0);
  longhaul_close(none);
  longhaul_destroy(none);
  longhaul_release(NULL);
  longhaul_free(NULL);
}

int main(int argc, char** argv) {
  enum { kCount = 1000 };
  static float gradient[kCount], values[kCount];
  const char* settings[] = {NULL, "insecure=true", "idle-timeout=5"};
  const char* sgd[] = {"optimizer=sgd:lr=1", "high=0:10", "high=20:10", "high-share=1"};
  const char* wrong[] = {"optimizer"};
  const float scores[] = {1, 2};
  longhaul_client* client = NULL;
  longhaul_tensor* tensor = NULL;
  longhaul_operation* operation = NULL;
  char place[256], blob[8];
  char* text = NULL;
  size_t size = 9;
  uint32_t number = 9;
  int status = 0;
  pid_t child;

  CHECK(argc == 2);
  CHECK(longhaul_c_api() == LONGHAUL_C_API && strlen(longhaul_version()) > 0);
  CHECK(strcmp(longhaul_code_name(LONGHAUL_PEER_DEAD), "PeerDead") == 0);
  CHECK(strcmp(longhaul_code_name(-1), "Unknown") == 0 && strcmp(longhaul_code_name(99), "Unknown") == 0);
  refuse_nulls();

  INVALID(longhaul_connect(settings, 1, NULL, NULL, &client), "a setting is null");
  snprintf(place, sizeof place, "join=%s", argv[1]);
  settings[0] = place;
  CHECK(longhaul_connect(settings, 3, log_line, &lines, &client) == LONGHAUL_OK && client != NULL);
  CHECK(longhaul_rank(client, &number) == LONGHAUL_OK && number == 0);
  CHECK(longhaul_world_size(client, &number) == LONGHAUL_OK && number == 1);
  INVALID(longhaul_rank(client, NULL), "no place");
  CHECK(longhaul_status(client) == LONGHAUL_OK);
  INVALID(longhaul_declare(client, "w", kCount, NULL, 1, NULL, &tensor), "memory is null");

  INVALID(longhaul_declare(client, "w", kCount, wrong, 1, NULL, &tensor), "NAME=VALUE");
  INVALID(longhaul_declare(client, NULL, kCount, NULL, 0, NULL, &tensor), "null");
  CHECK(longhaul_declare(client, "w", kCount, sgd, 4, NULL, &tensor) == LONGHAUL_OK && tensor != NULL);
  CHECK(longhaul_set_scores(client, tensor, scores, 2) == LONGHAUL_OK);
  INVALID(longhaul_set_scores(client, tensor, NULL, 2), "null");
  CHECK(longhaul_owed(client, tensor, values, kCount) == LONGHAUL_OK && values[1] == 0);
  INVALID(longhaul_owed(client, tensor, values, kCount - 1), "memory for");
  INVALID(longhaul_owed(client, tensor, NULL, kCount), "null");

  for (int i = 0; i < kCount; ++i) gradient[i] = (float)i;
  INVALID(longhaul_push(client, tensor, NULL, kCount, LONGHAUL_FLOAT32, 0, &operation), "null");
  INVALID(longhaul_push(client, tensor, gradient, kCount, 3, 0, &operation), "dtype 3");
  INVALID(longhaul_push(client, NULL, gradient, kCount, 0, 0, &operation), "null");
  INVALID(longhaul_pull(client, tensor, values, kCount, 0, 0, -2, &operation), "max_staleness");
  CHECK(longhaul_push_pull(client, tensor, gradient, values, kCount, LONGHAUL_FLOAT32, 2, &operation) == LONGHAUL_OK);
  CHECK(longhaul_wait(operation, 30) == LONGHAUL_OK && longhaul_done(operation) == 1);
  CHECK(longhaul_last_error()[0] == '\0');
  for (int i = 0; i < kCount; ++i) CHECK(values[i] == -(float)i);
  CHECK(longhaul_then(operation, ended, &calls) == LONGHAUL_OK && calls == 1 && outcome == LONGHAUL_OK);
  CHECK(longhaul_operation_stats(operation, &text) == LONGHAUL_OK && strstr(text, "\"bytes\":8000") != NULL);
  longhaul_free(text);
  INVALID(longhaul_operation_stats(operation, NULL), "null");
  longhaul_release(operation);

  CHECK(longhaul_pull(client, tensor, values, kCount, LONGHAUL_FLOAT32, 99, -1, &operation) == LONGHAUL_OK);
  CHECK(longhaul_wait(operation, 0.05) == LONGHAUL_DEADLINE_EXCEEDED && longhaul_done(operation) == 0);
  INVALID(longhaul_wait(operation, 0.0 / 0.0), "not a number");

  child = fork();
  if (child == 0) {
    const int refused = longhaul_status(client) == LONGHAUL_FAILED_PRECONDITION &&
                        strstr(longhaul_last_error(), "a child of it") != NULL &&
                        longhaul_wait(operation, 1) == LONGHAUL_FAILED_PRECONDITION &&
                        longhaul_then(operation, ended, &calls) == LONGHAUL_FAILED_PRECONDITION &&
                        longhaul_operation_stats(operation, &text) == LONGHAUL_FAILED_PRECONDITION;
    longhaul_close(client);
    _exit(refused ? 0 : 1);
  }
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

  CHECK(longhaul_clock(client, tensor, &text) == LONGHAUL_OK && strstr(text, "\"own\":1") != NULL);
  longhaul_free(text);
  CHECK(longhaul_stats(client, &text) == LONGHAUL_OK && strstr(text, "packets_sent") != NULL);
  longhaul_free(text);
  CHECK(longhaul_settings(client, &text) == LONGHAUL_OK && strstr(text, "policy") != NULL);
  longhaul_free(text);
  CHECK(longhaul_membership(client, &text) == LONGHAUL_OK && strstr(text, "\"ranks\":[0]") != NULL);
  longhaul_free(text);
  INVALID(longhaul_stats(client, NULL), "no place");
  CHECK(longhaul_barrier(client, "b") == LONGHAUL_OK);
  CHECK(longhaul_save_state(client, "x", 1) == LONGHAUL_FAILED_PRECONDITION);
  CHECK(longhaul_loaded_state(client, blob, sizeof blob, &size) == LONGHAUL_OK && size == 0);
  INVALID(longhaul_leave(client, 99, NULL), "code");

  /* What is pending ends with the client, and its handle is of use after it. */
  CHECK(longhaul_leave(client, LONGHAUL_CANCELLED, "enough") == LONGHAUL_OK);
  CHECK(longhaul_wait(operation, 10) == LONGHAUL_CANCELLED);
  longhaul_close(client);
  CHECK(longhaul_status(client) == LONGHAUL_FAILED_PRECONDITION);
  longhaul_destroy(client);
  CHECK(longhaul_done(operation) == 1);
  longhaul_release(operation);
  puts("ok");
  return 0;
}
