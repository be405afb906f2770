// Shift epochs, as a model (policy shift; server/tensor/shift_epochs.h): server and worker each remember what the worker usually
// sends, and these memories must be the same whenever a push is added. One server, rounds of all members (BSP).
//
// A memory is counted by how many pushes it has learned from since its epoch began. Whether the network loses a push's chunk is left
// out: one that is refused for its epoch is lost, and both memories stay as they are.

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 5
#endif
#ifndef SPARES
#define SPARES 1
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef GRACE
#define GRACE 0  // 1: a round may end without the others; what comes later counts in the next one
#endif
#define SERVERS 1

#define PROCESSES (WORKERS + SPARES)

#define UNBORN 0
#define RUNS 1
#define DONE 2
#define ENDED 3
#define DEAD 4
byte life[PROCESSES];
byte rank[PROCESSES];

#define DOWN 0
#define JOINED 1
#define ATTACHED 2
byte link[PROCESSES];
bool known[PROCESSES];
#define IDLE 0
#define WAITS 1  // encoded
#define SENT 2
byte stage[PROCESSES];
byte round[PROCESSES];         // of the push; where IDLE, of the next one
byte told_epoch[PROCESSES];    // what the worker knows of epochs
byte told_change[PROCESSES];
#define NONE 255
byte memory_epoch[PROCESSES];  // of the worker's memory, and of what is encoded
byte memory[PROCESSES];
byte result[PROCESSES];        // on its way: its round + 1
bool result_taken[PROCESSES];
byte result_epoch[PROCESSES];
byte result_change[PROCESSES];

bool up;
bool started;
byte number;
bool member[WORKERS];
byte newest[WORKERS];  // process + 1
#define ABSENT 0
#define AWAITED 1
#define CLOSED 2
byte part[WORKERS];
#define REFUSED 1
#define ADDED 2
byte chunk[WORKERS];
byte opener[WORKERS];  // process + 1
byte epoch;
byte change;           // the round from which on the next epoch is in force; 0: none is announced
bool changed;
bool belongs[WORKERS];
byte learned[WORKERS];  // the server's memory of the rank

byte record;
byte record_epoch;
byte counted_of[WORKERS];
byte counted_round[WORKERS];
byte fence[WORKERS];

byte faults = FAULTS;
byte born = 0;

#define Lives(p) (life[p] == RUNS || life[p] == DONE)
#define IsBusy(w) (part[w] == AWAITED)
#define IsIn(w) (chunk[w] != 0)
#if WORKERS == 2
#define Members (member[0] + member[1])
#define AllIn (!IsBusy(0) && !IsBusy(1))
#define Begun (IsIn(0) || IsIn(1))
#else
#define Members (member[0] + member[1] + member[2])
#define AllIn (!IsBusy(0) && !IsBusy(1) && !IsBusy(2))
#define Begun (IsIn(0) || IsIn(1) || IsIn(2))
#endif
#define EpochOf(p) (told_epoch[p] + (told_change[p] != 0 && round[p] >= told_change[p]))

#ifdef DROP_EPOCH
#define IsOfEpoch(p) true
#else
#define IsOfEpoch(p) (memory_epoch[p] == epoch)
#endif
#ifdef DROP_BELONGS
#define Belongs(w) true
#else
#define Belongs(w) belongs[w]
#endif

hidden byte i, j, o, top;

inline Encode(p) {
  if
  :: memory_epoch[p] != EpochOf(p) -> memory[p] = 0
  :: else
  fi;
  memory_epoch[p] = EpochOf(p);
  stage[p] = WAITS
}

inline Learn(p, e, c) {
  if
  :: e < told_epoch[p] || (e == told_epoch[p] && c == 0)
  :: else -> told_epoch[p] = e; told_change[p] = c
  fi
}

inline Lose(p, s) {
  link[p] = DOWN;
  result[p] = 0;
  if
  :: stage[p] == SENT -> stage[p] = WAITS
  :: else
  fi
}

inline EndProcess(p, how) {
  printf("process %d ends (%d)\n", p, how);
  life[p] = how;
  Lose(p, 0)
}

inline Begin(p, w) {
  printf("process %d begins as rank %d\n", p, w);
  rank[p] = w;
  born++;
  memory_epoch[p] = NONE;
  life[p] = RUNS
}

inline Attach(p) {
  printf("the server answers process %d: round %d, epoch %d, change %d\n", p, number, epoch, change);
  told_epoch[p] = epoch;
  told_change[p] = change;
  if
  :: !known[p] -> known[p] = true; round[p] = number
  :: known[p] && stage[p] == WAITS && counted_of[rank[p]] == p + 1 && counted_round[rank[p]] > round[p] ->
     memory[p]++;  // settled by what the log has of it
     stage[p] = IDLE;
     round[p] = number
  :: else ->
     if
     :: stage[p] == IDLE -> round[p] = number
     :: else
     fi;
     memory_epoch[p] = NONE;
     if
     :: stage[p] == WAITS -> Encode(p)
     :: else
     fi
  fi;
  link[p] = ATTACHED
}

inline MemberChanged(w) {
  belongs[w] = false;
  changed = true
}

inline BeginEpoch() {
  for (o : 0 .. WORKERS - 1) {
    belongs[o] = member[o];
    learned[o] = 0
  }
  change = 0;
  changed = false
}

inline Join(p, s) {
  printf("process %d of rank %d joins\n", p, rank[p]);
  i = rank[p];
  if
  :: p + 1 < newest[i] -> EndProcess(p, ENDED)
  :: else ->
     if
     :: member[i] && newest[i] != p + 1 -> top = newest[i] - 1; Lose(top, 0)
     :: else
     fi;
     newest[i] = p + 1;
     link[p] = JOINED;
     if
     :: started ->
        MemberChanged(i);
        if
        :: part[i] == AWAITED -> Attach(p)
        :: part[i] != AWAITED && !member[i] && !Begun -> part[i] = AWAITED; Attach(p)
        :: else
        fi
     :: else
     fi;
     member[i] = true;
     if
     :: !started && Members == WORKERS ->
        started = true;
        BeginEpoch();
        for (j : 0 .. WORKERS - 1) {
          part[j] = AWAITED;
          top = newest[j] - 1;
          Attach(top)
        }
     :: else
     fi
  fi
}

inline Take(p) {
  i = rank[p];
  printf("process %d pushes for round %d of epoch %d in round %d of epoch %d, learned %d and %d\n", p, round[p], memory_epoch[p],
         number, epoch, memory[p], learned[i]);
  assert(part[i] == AWAITED && round[p] <= number);
  part[i] = CLOSED;
  opener[i] = p + 1;
  stage[p] = SENT;
  if
  :: IsOfEpoch(p) && Belongs(i) ->
     assert(memory[p] == learned[i]);  // server and worker remember different shifts
     learned[i]++;
     chunk[i] = ADDED
  :: else ->
     assert(!belongs[i] || round[p] < number);       // refused, and it came in time
     assert(belongs[i] || changed || change != 0);     // refused, and for ever
     chunk[i] = REFUSED
  fi
}

inline Finish() {
  printf("round %d is logged\n", number);
  for (i : 0 .. WORKERS - 1) {
    fence[i] = newest[i];
    if
    :: chunk[i] != 0 ->
       top = opener[i] - 1;
       if
       :: chunk[i] == ADDED -> counted_of[i] = opener[i]; counted_round[i] = number + 1
       :: else
       fi;
       if
       :: stage[top] == SENT ->
          result[top] = number + 1;
          result_taken[top] = (chunk[i] == ADDED);
          result_epoch[top] = epoch;
          result_change[top] = change
       :: else
       fi
    :: else
    fi;
    part[i] = (member[i] -> AWAITED : ABSENT);
    opener[i] = 0;
    chunk[i] = 0
  }
  record_epoch = epoch;
  number++;
  record = number;
#ifdef DROP_ANNOUNCEMENT
  if
  :: changed -> epoch++; BeginEpoch()
  :: else
  fi;
#else
  if
  :: change != 0 && number >= change -> epoch++; BeginEpoch()
  :: (change == 0 || number < change) && changed && change == 0 -> change = number + 1; changed = false
  :: else
  fi;
#endif
  for (i : 0 .. WORKERS - 1) {
    top = newest[i] - 1;
    if
    :: member[i] && link[top] == JOINED -> Attach(top)
    :: else
    fi
  }
  skip
}

inline Gone(w) {
  printf("rank %d is taken for lost\n", w);
  member[w] = false;
  if
  :: started ->
     MemberChanged(w);
     part[w] = (part[w] == AWAITED -> CLOSED : part[w])
  :: else -> newest[w] = fence[w]
  fi
}

inline Die() {
  printf("the server dies\n");
  up = false;
  started = false;
  number = record;
#ifdef DROP_EPOCH_IN_LOG
  epoch = 0;
#else
  epoch = record_epoch + 1;
#endif
  change = 0;
  changed = false;
  for (i : 0 .. WORKERS - 1) {
    member[i] = false;
    newest[i] = fence[i];
    part[i] = ABSENT;
    chunk[i] = 0;
    opener[i] = 0;
    belongs[i] = false;
    learned[i] = 0
  }
  for (i : 0 .. PROCESSES - 1) { Lose(i, 0) }
  skip
}

proctype Link(byte p; byte s) {
end:
  do
  :: d_step { Lives(p) && link[p] == DOWN && up -> Join(p, 0) }
  :: d_step { life[p] == RUNS && stage[p] == IDLE && known[p] && round[p] < ROUNDS -> Encode(p) }
  :: d_step { life[p] == RUNS && stage[p] == IDLE && known[p] && round[p] == ROUNDS -> life[p] = DONE }
  :: d_step { link[p] == ATTACHED && stage[p] == WAITS && life[p] == RUNS && started && number < ROUNDS -> Take(p) }
  :: d_step { link[p] == ATTACHED && stage[p] == WAITS && life[p] == RUNS && number == ROUNDS -> stage[p] = IDLE; round[p] = ROUNDS }
  :: d_step { link[p] != DOWN && faults > 0 -> faults--; Lose(p, 0) }
  // A report of the round, which may come before or after the next thing that the worker does.
  :: d_step { link[p] == ATTACHED && (told_epoch[p] < epoch || told_epoch[p] == epoch && change != 0 && told_change[p] != change) ->
              Learn(p, epoch, change); skip }
  :: d_step { result[p] != 0 ->
              Learn(p, result_epoch[p], result_change[p]);
              memory[p] = memory[p] + result_taken[p];
              round[p] = result[p];
              result[p] = 0; result_taken[p] = false; result_epoch[p] = 0; result_change[p] = 0;
              stage[p] = IDLE }
  od
}

proctype Server() {
end:
  do
  :: d_step { started && (AllIn || GRACE) && Begun && number < ROUNDS -> Finish() }
  :: d_step { up && Members > 1 && member[0] && link[newest[0] - 1] == DOWN -> Gone(0); skip }
  :: d_step { up && Members > 1 && member[1] && link[newest[1] - 1] == DOWN -> Gone(1); skip }
#if WORKERS == 3
  :: d_step { up && Members > 1 && member[2] && link[newest[2] - 1] == DOWN -> Gone(2); skip }
#endif
  :: d_step { up && faults > 0 -> Die(); faults-- }
  :: d_step { !up -> up = true }
  od
}

#include "processes.pml"

init {
  atomic {
    for (i : 0 .. WORKERS - 1) {
      Begin(i, i);
      member[i] = true;
      newest[i] = i + 1;
      part[i] = AWAITED;
      belongs[i] = true;
      link[i] = ATTACHED;
      known[i] = true
    }
    up = true;
    started = true;
    run Server();
    RunAll()
  }
}
