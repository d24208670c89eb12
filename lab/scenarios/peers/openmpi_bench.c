/* openmpi_bench: in-place float32 sum by MPI_Allreduce, measured like `xdp-agg bench`; or
 * MPI_Bcast from rank 0, measured like `xdp-agg tune`.
 *
 * usage: openmpi_bench allreduce|bcast ITERS WARMUP BYTES...
 *
 * Rank 0 prints one JSON object a size and line. The time of a sum is averaged over the ranks. A
 * broadcast begins after a barrier, its time is that of the slowest rank, and sizes above 1 MiB get
 * fewer calls. Before and after timing the vector holds the pattern of `xdp-agg bench`, whose sum
 * is exact. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PERIOD 127

/* Seconds that all processors of the machine have worked since it started. */
static double machine_busy(void)
{
	unsigned long long user, nice, system, idle, iowait, irq, softirq;
	FILE *stat = fopen("/proc/stat", "r");
	if (!stat)
		return 0;
	int fields = fscanf(stat, "cpu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system,
			    &idle, &iowait, &irq, &softirq);
	fclose(stat);
	if (fields != 7)
		return 0;
	return (double)(user + nice + system + irq + softirq) / sysconf(_SC_CLK_TCK);
}

static void all_reduce(float *data, int count)
{
	MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void broadcast(float *data, int count)
{
	MPI_Bcast(data, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

/* Sums or spreads the pattern; the number of wrong elements on all ranks. */
static long verify(int is_sum, float *data, int count, int rank, int ranks)
{
	long wrong = 0, all = 0;
	int factor = is_sum ? ranks * (ranks + 1) / 2 : 1;
	for (int i = 0; i < count; i++)
		data[i] = (float)((rank + 1) * (i % PERIOD));
	if (is_sum)
		all_reduce(data, count);
	else
		broadcast(data, count);
	for (int i = 0; i < count; i++)
		wrong += data[i] != (float)(factor * (i % PERIOD));
	MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	return all;
}

static void measure(int is_sum, size_t bytes, int iters, int warmup, int rank, int ranks)
{
	void (*call)(float *, int) = is_sum ? all_reduce : broadcast;
	if (!is_sum && bytes >> 20 > 1) {
		iters = iters / (int)(bytes >> 20) > 3 ? iters / (int)(bytes >> 20) : 3;
		warmup = 1;
	}
	int count = (int)(bytes / sizeof(float));
	float *data = NULL;
	double *times = malloc(iters * sizeof *times), *sums = malloc(iters * sizeof *sums);
	if (posix_memalign((void **)&data, 4096, bytes < 4096 ? 4096 : bytes) || !times || !sums)
		MPI_Abort(MPI_COMM_WORLD, 3);
	long wrong = verify(is_sum, data, count, rank, ranks);
	memset(data, 0, bytes);
	for (int i = 0; i < warmup; i++)
		call(data, count);
	MPI_Barrier(MPI_COMM_WORLD);
	double busy = machine_busy();
	for (int i = 0; i < iters; i++) {
		if (!is_sum)
			MPI_Barrier(MPI_COMM_WORLD);
		double start = MPI_Wtime();
		call(data, count);
		times[i] = (MPI_Wtime() - start) * 1e6;
	}
	MPI_Barrier(MPI_COMM_WORLD);
	busy = machine_busy() - busy;
	wrong += verify(is_sum, data, count, rank, ranks);
	MPI_Reduce(times, sums, iters, MPI_DOUBLE, is_sum ? MPI_SUM : MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("{\"bytes\":%zu,\"iters\":%d,\"wrong\":%ld,\"cpu_s\":%.6f,\"mean_us\":[", bytes,
		       iters, wrong, busy / iters);
		for (int i = 0; i < iters; i++)
			printf("%s%.3f", i ? "," : "", is_sum ? sums[i] / ranks : sums[i]);
		printf("]}\n");
		fflush(stdout);
	}
	free(data);
	free(times);
	free(sums);
}

int main(int argc, char **argv)
{
	int rank, ranks;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int is_sum = argc > 1 && strcmp(argv[1], "allreduce") == 0;
	int is_known = is_sum || (argc > 1 && strcmp(argv[1], "bcast") == 0);
	if (argc < 5 || !is_known) {
		if (rank == 0)
			fprintf(stderr, "usage: %s allreduce|bcast ITERS WARMUP BYTES...\n",
				argv[0]);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	for (int i = 4; i < argc; i++)
		measure(is_sum, strtoull(argv[i], NULL, 10), atoi(argv[2]), atoi(argv[3]), rank,
			ranks);
	MPI_Finalize();
	return 0;
}
