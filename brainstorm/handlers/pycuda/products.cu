// Products of few rows with a small matrix: a block computes a row, or each block of a cluster some
// columns of it. In which order terms are added depends on the sizes of the matrix alone.

// Waits for the other threads of a cluster of so many blocks, and for what they have written.
template <int blocks>
static __device__ __forceinline__ void wait_for_cluster()
{
    if constexpr (blocks == 1) {
        __syncthreads();
    } else {
#ifdef __CUDASHIM__
        cudashim_cluster_barrier(__LINE__);
#else
        asm volatile("barrier.cluster.arrive.release.aligned;\n\t"
                     "barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }
}

// A matrix (terms, columns), or its transpose, in memory whose rows are some elements apart, perhaps
// all at multiples of 16 bytes. Its columns are groups of so many units, of which each block of a
// cluster has a part. Of its threads, of which there are so many, those next to each other share
// columns: they take turns with the terms, each of which is read once for all columns of a thread.
template <int columns, int units, int terms, int sharing, int blocks, int threads, bool turned,
          bool aligned>
struct Matrix {
    static constexpr int height = terms, sharers = sharing, block = threads;
    static constexpr int part = (units + blocks - 1) / blocks, width = columns / units * part;
    static constexpr int turns = (terms + sharing - 1) / sharing;
    static constexpr int rounds = (width + threads / sharing - 1) / (threads / sharing);
    static constexpr int held = 0, unrolled = 1;
    const float *start;
    int step;

    // The k-th column of a block, if k is less than the width and it is in its group.
    static __device__ __forceinline__ int column(int k)
    {
        return blocks == 1 ? k : k / part * units + blockIdx.x % blocks * part + k % part;
    }
    static __device__ __forceinline__ bool in_group(int k)
    {
        return blocks == 1 || blockIdx.x % blocks * part + k % part < units;
    }

    __device__ __forceinline__ float at(int round, int turn) const
    {
        const int k = threadIdx.x / sharing * rounds + round, j = column(k);
        const int i = threadIdx.x % sharing + turn * sharing;
        if (k >= width || !in_group(k) || i >= terms) return 0.0f;
        return start[turned ? (size_t)j * step + i : (size_t)i * step + j];
    }

    // Reads a turn: four elements at once, if they are adjacent.
    __device__ __forceinline__ void read(int turn, float (&into)[rounds]) const
    {
        if constexpr (aligned && !turned && rounds % 4 == 0 && part % 4 == 0 && units % 4 == 0) {
            const int k = threadIdx.x / sharing * rounds;
            const int i = threadIdx.x % sharing + turn * sharing;
#pragma unroll
            for (int round = 0; round < rounds; round += 4) {
                float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
                if (k + round < width && in_group(k + round) && i < terms)
                    four = *(const float4 *)(start + (size_t)i * step + column(k + round));
                into[round] = four.x, into[round + 1] = four.y;
                into[round + 2] = four.z, into[round + 3] = four.w;
            }
        } else {
#pragma unroll
            for (int round = 0; round < rounds; round++) into[round] = at(round, turn);
        }
    }
};

// What a thread has of a matrix: so many elements in registers, the others in memory that each
// thread has a part of.
template <class M, int in_registers>
struct Kept : M {
    static constexpr int held = (in_registers + M::rounds - 1) / M::rounds, unrolled = 4;
    float values[in_registers > 0 ? in_registers : 1], *others;

    __device__ __forceinline__ Kept(const M &matrix, float *shared)
        : M(matrix), others(shared + threadIdx.x)
    {
#pragma unroll 4
        for (int turn = in_registers / M::rounds; turn < M::turns; turn++) {
            float row[M::rounds];
            matrix.read(turn, row);
#pragma unroll
            for (int round = 0; round < M::rounds; round++) {
                const int i = turn * M::rounds + round - in_registers;
                if (i >= 0) others[i * M::block] = row[round];
            }
        }
#pragma unroll
        for (int turn = 0; turn < held; turn++) {
            float row[M::rounds];
            matrix.read(turn, row);
#pragma unroll
            for (int round = 0; round < M::rounds; round++) {
                const int i = turn * M::rounds + round;
                if (i < in_registers) values[i] = row[round];
            }
        }
    }

    __device__ __forceinline__ float at(int round, int turn) const
    {
        const int i = turn * M::rounds + round;
        return i < in_registers ? values[i] : others[(i - in_registers) * M::block];
    }
};

static constexpr __device__ int power_of_two(int least)
{
    return least < 2 ? 1 : 2 * power_of_two((least + 1) / 2);
}

// Adds the sums of threads that share columns: each goes on with a half of them, as long as there
// are several, until one has what it adds of all.
template <int half, int left>
static __device__ __forceinline__ void exchange(float *totals, int sharer)
{
    if constexpr (half > 0) {
        if constexpr (left == 1) totals[0] += __shfl_xor_sync(0xffffffffu, totals[0], half);
#pragma unroll
        for (int u = 0; u < left / 2; u++) {
            const float kept = sharer & half ? totals[u + left / 2] : totals[u];
            const float given = sharer & half ? totals[u] : totals[u + left / 2];
            totals[u] = kept + __shfl_xor_sync(0xffffffffu, given, half);
        }
        exchange<half / 2, (left + 1) / 2>(totals, sharer);
    }
}

// out = a @ matrix, for a row; or out += a @ matrix. The threads share the terms.
template <class M>
static __device__ __forceinline__ void multiply(const M &matrix, const float *a, float *out,
                                                bool adds, float *shared)
{
    // Of the sums of a thread, in the end some are its own, or several threads have the same one.
    constexpr int all = power_of_two(M::rounds), sharers = M::sharers;
    constexpr int mine = all > sharers ? all / sharers : 1, same = sharers > all ? sharers / all : 1;
    const int sharer = threadIdx.x % sharers, first = sharer / same * mine;
    const int begin = threadIdx.x / sharers * M::rounds + first;
    const int end = sharer % same == 0 ? min(M::rounds - first, M::width - begin) : 0;
    float before[mine];
#pragma unroll
    for (int k = 0; k < mine; k++) {
        const bool is_there = k < end && M::in_group(begin + k);
        before[k] = adds && is_there ? out[M::column(begin + k)] : 0.0f;
    }
#pragma unroll
    for (int begin = 0; begin < sharers * M::turns; begin += M::block) {
        const int i = begin + threadIdx.x;
        if (i < sharers * M::turns) shared[i] = i < M::height ? a[i] : 0.0f;
    }
    __syncthreads();
    float totals[all] = {0.0f};
    const auto take = [&](int turn) {
        const float x = shared[sharer + turn * sharers];
#pragma unroll
        for (int round = 0; round < M::rounds; round++) totals[round] += x * matrix.at(round, turn);
    };
#pragma unroll
    for (int turn = 0; turn < M::held; turn++) take(turn);
#pragma unroll(M::unrolled)
    for (int turn = M::held; turn < M::turns; turn++) take(turn);
    exchange<sharers / 2, all>(totals, sharer);
#pragma unroll
    for (int k = 0; k < mine; k++) {
        if (k < end && M::in_group(begin + k)) out[M::column(begin + k)] = before[k] + totals[k];
    }
}
