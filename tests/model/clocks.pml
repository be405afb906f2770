// Stale synchronous training (SSP), as a model: every worker has a clock at every server, the number of its pushes that the server
// has applied. A push is applied when its worker's clock is at most STALENESS ahead of the slowest member's; else it waits. An
// operation pushes to all servers, and completes Ok when each has applied its part and has that on its disk.
//
//   Link    one worker process and one server: join, push, the answer
//   Server  the record of what it has applied; death and restart
//   Process deaths of workers and their successors, also beside a predecessor that lives

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef SERVERS
#define SERVERS 2
#endif
#ifndef CLOCKS
#define CLOCKS 3  // pushes of a rank to a server
#endif
#ifndef SPARES
#define SPARES 1
#endif
#ifndef STALENESS
#define STALENESS 1
#endif
#ifndef FAULTS
#define FAULTS 2
#endif

#define PROCESSES (WORKERS + SPARES)
#define AT(p, s) ((p) * SERVERS + (s))  // a link
#define OF(s, w) ((s) * WORKERS + (w))  // a rank at a server

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
byte link[PROCESSES * SERVERS];
bool known[PROCESSES * SERVERS];
#define WAITS 0
#define SENT 1
#define TOLD 2
byte stage[PROCESSES * SERVERS];
byte clock[PROCESSES * SERVERS];  // of the push that is on its way; where it is TOLD, of the next one

bool up[SERVERS];
bool started[SERVERS];
bool member[SERVERS * WORKERS];
byte newest[SERVERS * WORKERS];   // process + 1
byte applied[SERVERS * WORKERS];  // the rank's clock
byte record[SERVERS * WORKERS];   // the same on the disk
byte session[SERVERS * WORKERS];  // process + 1 that the record is of: it fences those before it

byte faults = FAULTS;
byte born = 0;
bool lost[SERVERS * WORKERS];  // for assertions: the server has taken the rank for lost, and it has not come again and caught up

#define Lives(p) (life[p] == RUNS || life[p] == DONE)
#define Least(a, b) ((a) < (b) -> (a) : (b))
#define Most(a, b) ((a) > (b) -> (a) : (b))
// What is not on the disk yet may be lost again, and a worker that went ahead of it would be too far ahead then.
#ifdef DROP_DURABLE_BOUND
#define CountOf(s, w) (member[OF(s, w)] -> applied[OF(s, w)] : CLOCKS)
#else
#define CountOf(s, w) (member[OF(s, w)] -> record[OF(s, w)] : CLOCKS)
#endif
#define TrueOf(s, w) (lost[OF(s, w)] -> CLOCKS : applied[OF(s, w)])
#define IsDirty(s, w) (applied[OF(s, w)] != record[OF(s, w)])
#ifdef DROP_DURABLE_ANSWER
#define MayAnswer(s, w) true
#else
#define MayAnswer(s, w) (!IsDirty(s, w))
#endif
#if WORKERS == 2
#define EachOf(what, s) Least(what(s, 0), what(s, 1))
#define Fastest(s) Most(applied[OF(s, 0)], applied[OF(s, 1)])
#define Members(s) (member[OF(s, 0)] + member[OF(s, 1)])
#else
#define EachOf(what, s) Least(what(s, 0), Least(what(s, 1), what(s, 2)))
#define Fastest(s) Most(applied[OF(s, 0)], Most(applied[OF(s, 1)], applied[OF(s, 2)]))
#define Members(s) (member[OF(s, 0)] + member[OF(s, 1)] + member[OF(s, 2)])
#endif
#define Slowest(s) EachOf(CountOf, s)
// A rank that comes again may be behind by more; it counts when no other is too far ahead any more.
#define Lags(s, i) (applied[i] + STALENESS + 1 < Fastest(s))
#ifdef DROP_BOUND
#define IsInBound(p, s) true
#else
#define IsInBound(p, s) (clock[AT(p, s)] <= Slowest(s) + STALENESS)
#endif
#ifdef DROP_START
#define MayStart(s) true
#else
#define MayStart(s) (Members(s) == WORKERS)
#endif
#ifdef DROP_LOG
#define OnDisk(i) applied[i]
#else
#define OnDisk(i) record[i]
#endif

hidden byte i, j, o, all;

inline EndIfOver(p) {
  all = true;
  for (j : 0 .. SERVERS - 1) { all = all && stage[AT(p, j)] == TOLD }
  if
  :: all && life[p] == RUNS ->
     life[p] = DONE;
     for (j : 0 .. SERVERS - 1) {
       if
       :: clock[AT(p, j)] < CLOCKS -> stage[AT(p, j)] = WAITS; life[p] = RUNS
       :: else
       fi
     }
  :: else
  fi
}

inline Lose(p, s) {
  link[AT(p, s)] = DOWN;
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
  skip
}

inline Begin(p, w) {
  printf("process %d begins as rank %d\n", p, w);
  rank[p] = w;
  born++;
  life[p] = RUNS;
  skip
}

inline Tell(p, s) {
  printf("server %d tells process %d that push %d is applied\n", s, p, clock[AT(p, s)]);
  assert(record[OF(s, rank[p])] > clock[AT(p, s)]);  // acknowledged, and not on the disk
  stage[AT(p, s)] = TOLD;
  clock[AT(p, s)]++;
  EndIfOver(p)
}

// A successor begins where its rank's predecessor was.
inline Attach(p, s) {
  printf("server %d answers process %d: %d pushes are applied\n", s, p, applied[OF(s, rank[p])]);
  if
  :: !known[AT(p, s)] ->
     known[AT(p, s)] = true;
     clock[AT(p, s)] = applied[OF(s, rank[p])];
     if
     :: clock[AT(p, s)] == CLOCKS -> stage[AT(p, s)] = TOLD; EndIfOver(p)
     :: else
     fi
  :: else -> assert(stage[AT(p, s)] != TOLD || applied[OF(s, rank[p])] >= clock[AT(p, s)])  // the server has lost what it told
  fi;
  lost[OF(s, rank[p])] = lost[OF(s, rank[p])] && Lags(s, OF(s, rank[p]));
  link[AT(p, s)] = ATTACHED
}

inline Join(p, s) {
  printf("process %d of rank %d joins server %d\n", p, rank[p], s);
  i = OF(s, rank[p]);
  if
  :: p + 1 < newest[i] -> EndProcess(p, ENDED)
  :: else ->
     if
     :: member[i] && newest[i] != p + 1 -> o = newest[i] - 1; Lose(o, s)
     :: else
     fi;
     member[i] = true;
     newest[i] = p + 1;
     if
     :: started[s] -> Attach(p, s)
     :: !started[s] && MayStart(s) ->
        started[s] = true;
        for (i : OF(s, 0) .. OF(s, WORKERS - 1)) {
          if
          :: member[i] -> o = newest[i] - 1; Attach(o, s)
          :: else
          fi
        }
     :: else -> link[AT(p, s)] = JOINED
     fi
  fi
}

inline Take(p, s) {
  printf("process %d pushes %d to server %d\n", p, clock[AT(p, s)], s);
  i = OF(s, rank[p]);
  if
  :: clock[AT(p, s)] < applied[i]  // it has counted: told when that is on the disk
  :: else ->
     assert(clock[AT(p, s)] == applied[i]);                            // applied twice, or out of turn
     assert(clock[AT(p, s)] <= EachOf(TrueOf, s) + STALENESS);  // too far ahead of the slowest
     applied[i]++
  fi;
  stage[AT(p, s)] = SENT
}

inline Die(s) {
  printf("server %d dies\n", s);
  up[s] = false;
  started[s] = false;
  for (i : OF(s, 0) .. OF(s, WORKERS - 1)) {
    member[i] = false;
    newest[i] = session[i];
    applied[i] = record[i]
  }
  for (i : OF(s, 0) .. OF(s, WORKERS - 1)) {
    assert(lost[i] || applied[i] <= EachOf(TrueOf, s) + STALENESS + 1)  // too far ahead of the slowest, by what it had pushed before
  }
  for (i : 0 .. PROCESSES - 1) { Lose(i, s) }
  skip
}

inline Write(s, w) {
  i = OF(s, w);
  record[i] = applied[i];
  lost[i] = lost[i] && Lags(s, i);
  session[i] = newest[i];
  skip
}

inline Gone(s, w) {
  printf("server %d takes rank %d for lost\n", s, w);
  i = OF(s, w);
  member[i] = false;
  lost[i] = true;
  if
  :: !started[s] -> newest[i] = session[i]
  :: else
  fi
}

proctype Link(byte p; byte s) {
end:
  do
  :: d_step { Lives(p) && link[AT(p, s)] == DOWN && up[s] && MayAnswer(s, rank[p]) -> Join(p, s) }
  :: d_step { link[AT(p, s)] == ATTACHED && stage[AT(p, s)] == WAITS && life[p] == RUNS && started[s] && IsInBound(p, s) -> Take(p, s) }
  :: d_step { link[AT(p, s)] == ATTACHED && stage[AT(p, s)] == SENT && OnDisk(OF(s, rank[p])) > clock[AT(p, s)] -> Tell(p, s) }
  :: d_step { link[AT(p, s)] != DOWN && faults > 0 -> faults--; Lose(p, s) }
  od
}

#define IsLost(s, w) (up[s] && Members(s) > 1 && member[OF(s, w)] && link[AT(newest[OF(s, w)] - 1, s)] == DOWN)

proctype Server(byte s) {
end:
  do
  :: d_step { IsDirty(s, 0) -> Write(s, 0) }
  :: d_step { IsDirty(s, 1) -> Write(s, 1) }
  :: d_step { IsLost(s, 0) -> Gone(s, 0) }
  :: d_step { IsLost(s, 1) -> Gone(s, 1) }
#if WORKERS == 3
  :: d_step { IsDirty(s, 2) -> Write(s, 2) }
  :: d_step { IsLost(s, 2) -> Gone(s, 2) }
#endif
  :: d_step { up[s] && faults > 0 -> Die(s); faults-- }
  :: d_step { !up[s] -> up[s] = true }
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
        link[AT(o, i)] = ATTACHED;
        known[AT(o, i)] = true
      }
      run Server(i)
    }
    RunAll()
  }
}
