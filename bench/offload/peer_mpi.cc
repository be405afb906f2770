// A rank of MPI: mpirun longhaul_offload_mpi_rank TURNS_FILE
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <vector>

#include "bench/offload/turns.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  auto* const turns = longhaul::offload::Turns::Map(argv[1]);
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const size_t count = turns->bytes / sizeof(float);
  std::vector<float> send(count, 1), receive(count);
  turns->Take(static_cast<size_t>(rank), receive.data(), true, [&] {
    MPI_Allreduce(send.data(), receive.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
  MPI_Finalize();
  return 0;
}
