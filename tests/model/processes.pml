// The deaths of worker processes and their successors, and how every run of a model is to end. Included by the models.

// A rank whose newest process is dead has a successor coming: the spare that is left is its.
#if SPARES == 0
#define Newest(w) (w)
#else
#define Newest(w) ((life[WORKERS] != UNBORN && rank[WORKERS] == w) -> WORKERS : w)
#endif
#define IsBereft(w) (life[Newest(w)] == DEAD)
#if WORKERS == 2
#define Bereft (IsBereft(0) + IsBereft(1))
#else
#define Bereft (IsBereft(0) + IsBereft(1) + IsBereft(2))
#endif

proctype Process(byte p) {
end:
  do
  :: d_step { Lives(p) && faults > 0 && (p != Newest(rank[p]) || (born < PROCESSES && Bereft == 0)) -> EndProcess(p, DEAD); faults-- }
  :: d_step { p == born && (Bereft == 0 || IsBereft(0)) -> Begin(p, 0) }
  :: d_step { p == born && (Bereft == 0 || IsBereft(1)) -> Begin(p, 1) }
#if WORKERS == 3
  :: d_step { p == born && (Bereft == 0 || IsBereft(2)) -> Begin(p, 2) }
#endif
  od
}

// Nothing more can happen: every wait is over, and no worker was refused but for its successor.
proctype Judge() {
end:
  do
  :: timeout ->
     d_step {
       for (i : 0 .. PROCESSES - 1) { assert(life[i] == DONE || (life[i] >= ENDED && i != Newest(rank[i]))) }  // waits for ever
       i = 0
     }
     break
  od
}

inline RunAll() {
  for (i : 0 .. PROCESSES - 1) {
    run Process(i);
    for (o : 0 .. SERVERS - 1) { run Link(i, o) }
  }
  run Judge()
}
