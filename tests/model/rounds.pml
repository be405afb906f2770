// Rounds of synchronous training, as a model: what is counted, logged, told and sent again while any process may die and come back.
//
// Each of SERVERS holds one shard; a worker's operation pushes to all of them and completes Ok when every shard has told its round
// ("acknowledged"). Of a window one chunk is followed: it arrives as the window opens, and the window may be over later (the rest
// of its chunks). Messages that a connection delivers in order, or that its loss drops, are steps of the link; a message that is on
// its way when its sender dies is the same as one that arrived before or never.
//
//   Link    one worker process and one server: join, declare, push, window over, result
//   Server  round complete -> record on the disk -> told; checkpoints; death and restart
//   Process deaths of workers and their successors, also beside a predecessor that lives (processes.pml)
//
// DROP_...: a guard that is left out. Settings, and what must fail without which guard: check.py.

#ifndef WORKERS
#define WORKERS 2  // ranks
#endif
#ifndef SERVERS
#define SERVERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 3  // 3 at most (Counted)
#endif
#ifndef SPARES
#define SPARES 1  // processes that take a rank later on
#endif
#ifndef QUORUM
#define QUORUM 1
#endif
#ifndef GRACE
#define GRACE 0  // 1: with a quorum a round may end without the others
#endif
#ifndef LATE
#define LATE GRACE  // 1: a push whose round is over counts in the round of that moment; 0: it is passed over
#endif
#ifndef FAULTS
#define FAULTS 2  // deaths of servers and workers and cuts of connections, together
#endif
#ifndef COARSE
#define COARSE 0  // 1: a window comes whole, and a record is written at once: nothing happens in between
#endif
#ifndef CHECKPOINTS
#define CHECKPOINTS 0
#endif

#define PROCESSES (WORKERS + SPARES)
#define AT(p, s) ((p) * SERVERS + (s))  // a link
#define OF(s, w) ((s) * WORKERS + (w))  // a rank at a server

// --- Worker processes. A higher number is a later incarnation. ---
#define UNBORN 0
#define RUNS 1
#define DONE 2   // all shards are over; still connects, as a worker that waits for the others
#define ENDED 3  // refused, as an older incarnation: all its waits have ended
#define DEAD 4
byte life[PROCESSES];
byte rank[PROCESSES];
byte op[PROCESSES];  // operations that are over: the number of the one in progress

// --- Links ---
#define DOWN 0
#define JOINED 1    // waits for the start, or for the end of the round in progress (a postponed answer)
#define ATTACHED 2  // has the answer to its Declare
byte link[PROCESSES * SERVERS];
bool known[PROCESSES * SERVERS];  // was attached before
#define WAITS 0    // to be sent, or sent again
#define SENT 1     // the server has its window
#define FETCHES 2  // had counted: the result is pulled
#define TOLD 3
#define MISSED 4   // the round went on without it: the operation ends, and not as acknowledged
#define OVER 5     // nothing to push: the shard's last round is over
byte stage[PROCESSES * SERVERS];
byte round[PROCESSES * SERVERS];   // of the push; where it is TOLD, of the next one
byte result[PROCESSES * SERVERS];  // on its way to the worker: its round + 1

// --- Servers: in memory ---
bool up[SERVERS];
bool started[SERVERS];
bool logging[SERVERS];  // the round is complete, its record is being written
byte number[SERVERS];   // of the round in progress
bool member[SERVERS * WORKERS];
byte newest[SERVERS * WORKERS];  // process + 1 that was the rank's last, which is the fence
#define ABSENT 0
#define AWAITED 1
#define OPEN 2
#define CLOSED 3
#define LAGGING 4  // a member that the round does not wait for; it may still open its window
byte part[SERVERS * WORKERS];
byte chunk[SERVERS * WORKERS];  // that is in: Id of the push; 0: none
byte opener[SERVERS * WORKERS];  // process + 1 whose window it is; another than the chunk's where a predecessor's was in
byte image[SERVERS];            // being written as a checkpoint: its round + 1

// --- Servers: on the disk. In memory the same, as long as the server lives. ---
byte record[SERVERS];      // state after so many rounds
byte checkpoint[SERVERS];  // the same
byte counted_of[SERVERS * WORKERS];     // process + 1 whose push counted last ...
byte counted_round[SERVERS * WORKERS];  // ... and its round + 1
byte fence[SERVERS * WORKERS];          // newest, when the record was written

byte faults = FAULTS;
byte born = 0;

// --- What is true, for the assertions alone ---
// Two bits an operation: the round + 1 of the server's state in which it counts.
byte truth[PROCESSES * SERVERS];
#define Counted(p, s, o) ((truth[AT(p, s)] >> (2 * (o))) & 3)

#define Id(p) (1 + (p) * 4 + op[p])
#define ProcessOf(id) (((id) - 1) / 4)
#define OperationOf(id) (((id) - 1) % 4)
#define Lives(p) (life[p] == RUNS || life[p] == DONE)
#define Max(a, b) ((a) > (b) -> (a) : (b))

#if WORKERS == 2
#define EACH(what, s, join) (what(s, 0) join what(s, 1))
#else
#define EACH(what, s, join) (what(s, 0) join what(s, 1) join what(s, 2))
#endif
#define IsMember(s, w) member[OF(s, w)]
#define IsIn(s, w) (chunk[OF(s, w)] != 0)
#define IsOver(s, w) (part[OF(s, w)] == CLOSED && chunk[OF(s, w)] != 0)
#define IsFree(s, w) (part[OF(s, w)] != AWAITED && part[OF(s, w)] != OPEN)
#define Members(s) EACH(IsMember, s, +)
#define Begun(s) EACH(IsIn, s, ||)
#define Contributors(s) EACH(IsIn, s, +)
#define Windows(s) EACH(IsOver, s, +)
#define AllIn(s) EACH(IsFree, s, &&)
#ifdef DROP_QUORUM
#define HasQuorum(s) Begun(s)
#else
#define HasQuorum(s) (Windows(s) >= QUORUM)
#endif

#if SERVERS == 1
#define AllKnown(p) known[AT(p, 0)]
#else
#define AllKnown(p) (known[AT(p, 0)] && known[AT(p, 1)])
#endif
// Whether a worker without a chunk in the round in progress takes part in it: not when all others are in, and no more when it is
// closing. Else it has its answer when the round is over.
#ifdef DROP_ENTRY
#define MayEnter(s, i) (!Begun(s))
#else
#define MayEnter(s, i) (!Begun(s) || !AllIn(s))
#endif
// A push whose round is over is passed over: the round has nothing of it.
#ifdef DROP_PASSED
#define Misses(p, s) false
#else
#define Misses(p, s) (!LATE && round[AT(p, s)] < number[s])
#endif

// A push of this process for this round, or a later one, is in the state.
#define Counts(p, s) (counted_of[OF(s, rank[p])] == p + 1 && counted_round[OF(s, rank[p])] > round[AT(p, s)])
#ifdef DROP_COUNTED
#define HasCounted(p, s) false
#else
#define HasCounted(p, s) Counts(p, s)
#endif

// A postponed answer says what is so when it leaves, or what was so when it was asked for, before its push had counted.
#ifdef DROP_FRESH_ANSWER
#define CountsNow(p, s) false
#else
#define CountsNow(p, s) Counts(p, s)
#endif

// Scratch of one step.
hidden byte i, j, o, top, least, late;

// --- A worker's side ---

// All shards' parts of an operation are for one round: the first one that any server has for it. Where a server is further, its part
// is passed over.
inline Align(p) {
  least = ROUNDS;
  for (j : 0 .. SERVERS - 1) { least = (round[AT(p, j)] < least -> round[AT(p, j)] : least) }
#ifndef DROP_ALIGNED
  for (j : 0 .. SERVERS - 1) {
    stage[AT(p, j)] = (round[AT(p, j)] > least -> MISSED : WAITS)
  }
#endif
}

inline EndIfOver(p) {
  late = true;
  for (j : 0 .. SERVERS - 1) { late = late && stage[AT(p, j)] >= TOLD }
  if
  :: late && life[p] == RUNS ->
     for (j : 0 .. SERVERS - 1) { late = late && stage[AT(p, j)] == OVER }
     if
     :: late -> life[p] = DONE
     :: else ->
        op[p]++;
        for (j : 0 .. SERVERS - 1) { stage[AT(p, j)] = WAITS }
        Align(p)
     fi
  :: else
  fi
}

// The shard's part of the operation is acknowledged: it counts in round r - 1, and that is on the disk.
inline Tell(p, s, r) {
  printf("shard %d tells process %d that operation %d counts in round %d\n", s, p, op[p], r - 1);
  assert(Counted(p, s, op[p]) != 0);                                // acknowledged, and does not count
  assert(Counted(p, s, op[p]) <= Max(record[s], checkpoint[s]));  // acknowledged, and not on the disk
  stage[AT(p, s)] = TOLD;
  round[AT(p, s)] = r;
  EndIfOver(p)
}

inline Lose(p, s) {
  printf("process %d has no connection to server %d\n", p, s);
  link[AT(p, s)] = DOWN;
  result[AT(p, s)] = 0;
#ifndef DROP_RESEND
  if
  :: stage[AT(p, s)] == SENT -> stage[AT(p, s)] = WAITS
  :: else
  fi
#endif
  skip
}

inline EndProcess(p, how) {
  printf("process %d ends (%d)\n", p, how);
  life[p] = how;
  for (j : 0 .. SERVERS - 1) { Lose(p, j) }
}

inline Begin(p, w) {
  printf("process %d begins as rank %d\n", p, w);
  rank[p] = w;
  born++;
  life[p] = RUNS;
  for (j : 0 .. SERVERS - 1) { stage[AT(p, j)] = WAITS }
  skip
}

// The answer to a Declare: the server's next round, and whether the push that waits has counted.
inline Attach(p, s, next, counts) {
  printf("server %d answers process %d: round %d is next\n", s, p, next);
  if
  :: known[AT(p, s)] ->
     if
     :: stage[AT(p, s)] == WAITS && counts -> stage[AT(p, s)] = FETCHES; round[AT(p, s)] = next
     :: stage[AT(p, s)] == TOLD || stage[AT(p, s)] == MISSED -> assert(next >= round[AT(p, s)]); round[AT(p, s)] = next
     :: else
     fi
  :: else ->
     round[AT(p, s)] = next;
     known[AT(p, s)] = true;
     if
     :: AllKnown(p) -> Align(p)
     :: else
     fi
  fi;
  link[AT(p, s)] = ATTACHED
}

// --- A server's side ---

inline Join(p, s) {
  printf("process %d of rank %d joins server %d\n", p, rank[p], s);
  i = OF(s, rank[p]);
  if
#ifndef DROP_FENCE
  :: p + 1 < newest[i] -> EndProcess(p, ENDED)
#endif
  :: else ->
     late = false;
     if
     :: !started[s]
     :: started[s] && !logging[s] && (member[i] && part[i] != CLOSED && part[i] != ABSENT || chunk[i] == 0 && MayEnter(s, i)) ->
        part[i] = AWAITED
     :: else -> late = true
     fi;
     if
     :: member[i] && newest[i] != p + 1 -> top = newest[i] - 1; Lose(top, s)
     :: else
     fi;
     member[i] = true;
     newest[i] = p + 1;
     if
     :: started[s] && !late -> Attach(p, s, number[s], Counts(p, s))
     :: else -> link[AT(p, s)] = JOINED
     fi;
     if
     :: !started[s] && Members(s) == WORKERS ->
        started[s] = true;
        for (o : 0 .. WORKERS - 1) {
          top = newest[OF(s, o)] - 1;
          part[OF(s, o)] = AWAITED;
          Attach(top, s, number[s], Counts(top, s))
        }
     :: else
     fi
  fi
}

// The window opens, and its chunk is in.
inline Take(p, s) {
  printf("process %d pushes operation %d to server %d for round %d, which is in round %d\n", p, op[p], s, round[AT(p, s)], number[s]);
  i = OF(s, rank[p]);
  if
  :: number[s] == ROUNDS && round[AT(p, s)] == ROUNDS -> stage[AT(p, s)] = OVER; EndIfOver(p)
  :: HasCounted(p, s) -> top = counted_round[i]; Tell(p, s, top)
  :: !HasCounted(p, s) && round[AT(p, s)] < number[s] && (number[s] == ROUNDS || Misses(p, s))
     -> stage[AT(p, s)] = MISSED; round[AT(p, s)] = number[s]; EndIfOver(p)
  :: else ->
     assert(part[i] == AWAITED || part[i] == LAGGING);
     if
#ifndef DROP_BIT
     :: chunk[i] != 0  // acknowledged, not added
#endif
     :: else ->
        assert(chunk[i] == 0);                   // added twice in one round
        assert(Counted(p, s, op[p]) == 0);  // counted in another round already
        chunk[i] = Id(p)
     fi;
     opener[i] = p + 1;
     part[i] = (COARSE -> CLOSED : OPEN);
     stage[AT(p, s)] = SENT
  fi
}

// A round's record is on the disk: it is over, and told.
inline Finish(s) {
  printf("server %d has logged round %d\n", s, number[s]);
  assert(Contributors(s) >= QUORUM);  // a round of fewer
  number[s]++;
  record[s] = number[s];
  for (i : OF(s, 0) .. OF(s, WORKERS - 1)) {
    fence[i] = newest[i];
    if
    :: chunk[i] != 0 ->
       top = ProcessOf(chunk[i]);
       truth[AT(top, s)] = truth[AT(top, s)] | (number[s] << (2 * OperationOf(chunk[i])));
#ifdef DROP_OPENER
       opener[i] = newest[i];
#endif
       counted_of[i] = opener[i];
       counted_round[i] = number[s];
       top = opener[i] - 1;
       if  // what a predecessor had sent in this round stands for it
       :: chunk[i] != Id(top) && Counted(top, s, op[top]) == 0 -> truth[AT(top, s)] = truth[AT(top, s)] | (number[s] << (2 * op[top]))
       :: else
       fi;
       if
       :: stage[AT(top, s)] == SENT -> result[AT(top, s)] = number[s]
       :: else
       fi
    :: else
    fi;
    opener[i] = 0;
    part[i] = (member[i] -> AWAITED : ABSENT);
    chunk[i] = 0
  }
  for (i : OF(s, 0) .. OF(s, WORKERS - 1)) {
    top = newest[i] - 1;
    if
    :: member[i] && link[AT(top, s)] == JOINED -> Attach(top, s, number[s], CountsNow(top, s))
    :: else
    fi
  }
  logging[s] = false
}

// The rank's connection is over: rounds do not wait for it.
inline Gone(s, w) {
  printf("server %d takes rank %d for lost\n", s, w);
  i = OF(s, w);
  member[i] = false;
  if
  :: !started[s] -> newest[i] = fence[i]
  :: started[s] && (part[i] != ABSENT) -> part[i] = CLOSED
  :: else
  fi
}

inline Die(s) {
  printf("server %d dies\n", s);
  up[s] = false;
  started[s] = false;
  logging[s] = false;
  image[s] = 0;
  number[s] = Max(record[s], checkpoint[s]);
  for (i : OF(s, 0) .. OF(s, WORKERS - 1)) {
    if
    :: record[s] < checkpoint[s] -> counted_of[i] = 0; counted_round[i] = 0; fence[i] = 0  // a checkpoint does not have them
    :: else
    fi;
    member[i] = false;
#ifdef DROP_FENCE_IN_LOG
    fence[i] = 0;
#endif
    newest[i] = fence[i];
    opener[i] = 0;
    part[i] = ABSENT;
    chunk[i] = 0
  }
  for (i : 0 .. PROCESSES - 1) {
    Lose(i, s);
    for (o : 0 .. ROUNDS - 1) {
      if
      :: Counted(i, s, o) > number[s] ->
         assert(o >= op[i] && !(o == op[i] && stage[AT(i, s)] == TOLD));  // an acknowledged push is lost
         truth[AT(i, s)] = truth[AT(i, s)] & ~(3 << (2 * o))
      :: else
      fi
    }
  }
}

proctype Link(byte p; byte s) {
end:
  do
  :: d_step { Lives(p) && link[AT(p, s)] == DOWN && up[s] -> Join(p, s) }
  :: d_step { link[AT(p, s)] == ATTACHED && stage[AT(p, s)] == WAITS && life[p] == RUNS && started[s] && !logging[s] && AllKnown(p) &&
              round[AT(p, s)] <= number[s] -> Take(p, s) }
  :: d_step { stage[AT(p, s)] == SENT && part[OF(s, rank[p])] == OPEN && newest[OF(s, rank[p])] == p + 1 && !logging[s] ->
              part[OF(s, rank[p])] = CLOSED }
  :: d_step { link[AT(p, s)] != DOWN && faults > 0 -> faults--; Lose(p, s) }
  :: d_step { result[AT(p, s)] != 0 -> top = result[AT(p, s)]; result[AT(p, s)] = 0; Tell(p, s, top) }
  :: d_step { link[AT(p, s)] == ATTACHED && stage[AT(p, s)] == FETCHES && number[s] >= round[AT(p, s)] ->
              top = number[s]; Tell(p, s, round[AT(p, s)]) }
  od
}

proctype Server(byte s) {
end:
  do
  :: d_step { started[s] && !logging[s] && number[s] < ROUNDS && (AllIn(s) || GRACE) && HasQuorum(s) ->
              for (i : OF(s, 0) .. OF(s, WORKERS - 1)) {
                part[i] = (part[i] == OPEN -> CLOSED : part[i]);
#ifdef DROP_LOG
                if  // told at once
                :: opener[i] != 0 && stage[AT(opener[i] - 1, s)] == SENT -> result[AT(opener[i] - 1, s)] = number[s] + 1
                :: else
                fi
#endif
              }
#if COARSE
              Finish(s) }
#else
              logging[s] = true }
  :: d_step { logging[s] -> Finish(s) }
#endif
#if CHECKPOINTS
  :: d_step { up[s] && image[s] == 0 && number[s] > checkpoint[s] -> image[s] = number[s];
#ifdef DROP_KEEP
              record[s] = 0;
#endif
              skip }
  :: d_step { image[s] != 0 -> checkpoint[s] = image[s]; image[s] = 0;
#ifdef DROP_KEEP_COUNTED
              record[s] = (record[s] <= checkpoint[s] -> 0 : record[s]);
#endif
              skip }
#endif
  :: d_step { up[s] && faults > 0 -> Die(s); faults-- }
  :: d_step { !up[s] -> up[s] = true }
  :: d_step { up[s] && Members(s) > 1 && member[OF(s, 0)] && link[AT(newest[OF(s, 0)] - 1, s)] == DOWN -> Gone(s, 0) }
  :: d_step { up[s] && Members(s) > 1 && member[OF(s, 1)] && link[AT(newest[OF(s, 1)] - 1, s)] == DOWN -> Gone(s, 1) }
#if WORKERS == 3
  :: d_step { up[s] && Members(s) > 1 && member[OF(s, 2)] && link[AT(newest[OF(s, 2)] - 1, s)] == DOWN -> Gone(s, 2) }
#endif
  od
}

#include "processes.pml"

init {
  atomic {
    for (i : 0 .. WORKERS - 1) { Begin(i, i) }
    for (i : 0 .. SERVERS - 1) {
      up[i] = true;
      started[i] = true;
      for (o : 0 .. WORKERS - 1) {
        member[OF(i, o)] = true;
        newest[OF(i, o)] = o + 1;
        part[OF(i, o)] = AWAITED;
        link[AT(o, i)] = ATTACHED;
        known[AT(o, i)] = true
      }
      run Server(i)
    }
    RunAll()
  }
}
