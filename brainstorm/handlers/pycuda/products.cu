// Products of few rows with a small matrix: a block computes a row. In which order terms are added
// depends on the sizes of the matrix alone.

// A matrix (terms, columns), or its transpose, in memory whose rows are some elements apart. Of so
// many threads those next to each other share columns: they take turns with the terms, each of which
// is read once for all columns of a thread.
template <int columns, int terms, int sharing, int threads, bool turned>
struct Matrix {
    static constexpr int width = columns, height = terms, sharers = sharing, block = threads;
    static constexpr int turns = (terms + sharing - 1) / sharing;
    static constexpr int rounds = (columns + threads / sharing - 1) / (threads / sharing);
    static constexpr int unrolled = 1;
    const float *start;
    int step;

    __device__ __forceinline__ float at(int round, int turn) const
    {
        const int j = threadIdx.x / sharing * rounds + round;
        const int i = threadIdx.x % sharing + turn * sharing;
        if (j >= columns || i >= terms) return 0.0f;
        return start[turned ? (size_t)j * step + i : (size_t)i * step + j];
    }
};

// What a thread has of a matrix: so many elements in registers, the others in memory that each
// thread has a part of.
template <class M, int held>
struct Kept : M {
    static constexpr int unrolled = M::turns;
    float values[held > 0 ? held : 1], *others;

    __device__ __forceinline__ Kept(const M &matrix, float *shared)
        : M(matrix), others(shared + threadIdx.x)
    {
#pragma unroll
        for (int turn = 0; turn < M::turns; turn++) {
#pragma unroll
            for (int round = 0; round < M::rounds; round++) {
                const int i = turn * M::rounds + round;
                (i < held ? values[i] : others[(i - held) * M::block]) = matrix.at(round, turn);
            }
        }
    }

    __device__ __forceinline__ float at(int round, int turn) const
    {
        const int i = turn * M::rounds + round;
        return i < held ? values[i] : others[(i - held) * M::block];
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
    const int sharer = threadIdx.x % sharers;
    const int first = sharer / same * mine, j = threadIdx.x / sharers * M::rounds + first;
    const int end = sharer % same == 0 ? min(M::rounds - first, M::width - j) : 0;
    float before[mine];
#pragma unroll
    for (int k = 0; k < mine; k++) before[k] = adds && k < end ? out[j + k] : 0.0f;
#pragma unroll
    for (int begin = 0; begin < sharers * M::turns; begin += M::block) {
        const int i = begin + threadIdx.x;
        if (i < sharers * M::turns) shared[i] = i < M::height ? a[i] : 0.0f;
    }
    __syncthreads();
    float totals[all] = {0.0f};
#pragma unroll(M::unrolled)
    for (int turn = 0; turn < M::turns; turn++) {
        const float x = shared[sharer + turn * sharers];
#pragma unroll
        for (int round = 0; round < M::rounds; round++) totals[round] += x * matrix.at(round, turn);
    }
    exchange<sharers / 2, all>(totals, sharer);
#pragma unroll
    for (int k = 0; k < mine; k++) {
        if (k < end) out[j + k] = before[k] + totals[k];
    }
}
