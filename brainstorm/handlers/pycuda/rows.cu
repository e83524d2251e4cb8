// Rows of tables that indices name. `take_rows` computes element i of what it takes, for a loop
// over all of them.

// Index i of v: a float, whose fraction is cut off, or an integer of 64 bits. `back` is added to
// negative ones.
static __device__ __forceinline__ long long index_at(const void *v, int is_float, size_t i,
                                                       int back)
{
    const long long far = 1ll << 62;  // further, and of NaN, a conversion is undefined in C++
    const float x = is_float ? ((const float *)v)[i] : 0.0f;
    const long long at = !is_float ? ((const long long *)v)[i]
                         : x > far ? far : x >= -far ? (long long)x : -far;
    return at < 0 ? at + back : at;
}

// out (outer, picks, inner) = rows of table (outer, size, inner): those that v (picks) names, or
// with `each` of v (outer, picks, inner) an element for each of out; NaN where there is no such row.
static __device__ __forceinline__ float take_rows(const float *table, const void *v, unsigned i,
                                                  int size, int picks, int inner, int each,
                                                  int is_float, int back)
{
    const unsigned column = i % inner, pick = i / inner % picks, outer = i / inner / picks;
    const long long row = index_at(v, is_float, each ? i : pick, back);
    if (row < 0 || row >= size) return INFINITY - INFINITY;
    return table[((size_t)outer * size + row) * inner + column];
}

// out (outer, size, inner) += values (outer, picks, inner), each in the row that v names.
extern "C" __global__ void scatter_each(const float *values, const void *v, float *out, int columns,
                                        int size, int picks, int inner, int is_float, int back)
{
    EACH(i, columns)
    {
        const unsigned column = i % inner, outer = i / inner;
        for (int k = 0; k < picks; k++) {
            const size_t from = ((size_t)outer * picks + k) * inner + column;
            const long long row = index_at(v, is_float, from, back);
            if (row >= 0 && row < size)
                out[((size_t)outer * size + row) * inner + column] += values[from];
        }
    }
}

// -- adding rows to a table -----------------------------------------------------------------------
//
// Indices are sorted, with their positions, so that those of a row lie side by side: a segment. The
// order is that of the positions within a segment, whatever threads do when.

// A row, and a position in the lower 32 bits. No two pairs are equal, so every sort is stable.
typedef unsigned long long Pair;
#define TILE 2048u  // as in builders.py
#define NO_ROW 0xffffffffu

static __device__ __forceinline__ unsigned row(Pair pair) { return (unsigned)(pair >> 32); }

// Where pair i comes to lie when each two sorted runs of `width` pairs become one.
static __device__ __forceinline__ unsigned merged(const Pair *pairs, unsigned i, unsigned width,
                                                  unsigned count)
{
    const unsigned start = i / (2 * width) * (2 * width);
    const unsigned middle = min(start + width, count), stop = min(start + 2 * width, count);
    unsigned low = i < middle ? middle : start, high = i < middle ? stop : middle;
    while (low < high) {
        const unsigned half = low + (high - low) / 2;
        if (pairs[half] < pairs[i]) low = half + 1;
        else high = half;
    }
    return i + low - middle;
}

// pairs = those of the indices v, sorted within tiles: a block for each of them.
extern "C" __global__ void sort_tiles(const void *v, Pair *pairs, int count, int size, int is_float,
                                      int back)
{
    __shared__ Pair runs[2][TILE];
    const unsigned first = blockIdx.x * TILE, length = min(TILE, count - first);
    for (unsigned i = threadIdx.x; i < length; i += blockDim.x) {
        const long long at = index_at(v, is_float, first + i, back);
        const unsigned found = at >= 0 && at < size ? (unsigned)at : NO_ROW;
        runs[0][i] = (Pair)found << 32 | (first + i);
    }
    int from = 0;
    for (unsigned width = 1; width < length; width *= 2, from = !from) {
        __syncthreads();
        for (unsigned i = threadIdx.x; i < length; i += blockDim.x)
            runs[!from][merged(runs[from], i, width, length)] = runs[from][i];
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < length; i += blockDim.x) pairs[first + i] = runs[from][i];
}

extern "C" __global__ void merge_runs(const Pair *pairs, Pair *out, int count, int width)
{
    EACH(i, count) out[merged(pairs, i, width, count)] = pairs[i];
}

// out (outer, size, inner) += m (outer, picks, inner), for segments within a chunk of pairs. Where
// a segment reaches over several chunks, parts (chunks, 2, outer, inner) are its sums in each:
// first that of a segment which is there at the chunk's beginning, then that of one which begins
// later. Nothing is added to what is no row.
extern "C" __global__ void add_segments(const float *m, const Pair *pairs, float *parts, float *out,
                                        int count, int size, int picks, int inner, int chunk)
{
    EACH(i, count)
    {
        const unsigned column = i % inner, k = i / inner % picks, outer = i / inner / picks;
        const unsigned target = row(pairs[k]), offset = k % chunk;
        const bool is_first = k == 0 || row(pairs[k - 1]) != target;
        if (target == NO_ROW || (offset && !is_first)) continue;
        const float *rows = m + (size_t)outer * picks * inner + column;
        const unsigned stop = min(k - offset + chunk, picks);
        unsigned at = k;
        float sum = 0.0f;
        for (; at < stop && row(pairs[at]) == target; at++)
            sum += rows[(size_t)(unsigned)pairs[at] * inner];
        if (is_first && (at == picks || row(pairs[at]) != target))
            out[((size_t)outer * size + target) * inner + column] += sum;
        else
            parts[((k / chunk * 2 + (offset > 0)) * (size_t)(count / picks / inner) + outer) * inner
                  + column] = sum;
    }
}

// The rest of `add_segments`: by the threads of the chunk in which a segment of several begins.
extern "C" __global__ void add_parts(const Pair *pairs, const float *parts, float *out, int count,
                                     int size, int picks, int inner, int chunk, int columns)
{
    EACH(i, count)
    {
        const unsigned first = i / columns * chunk, column = i % columns;
        const unsigned target = row(pairs[first + chunk - 1]);
        if (target == NO_ROW || row(pairs[first + chunk]) != target) continue;
        if (first && row(pairs[first - 1]) == target) continue;
        size_t part = i / columns * 2 + (row(pairs[first]) != target);
        float sum = parts[part * columns + column];
        for (unsigned at = first + chunk; at < picks && row(pairs[at]) == target; at += chunk)
            sum += parts[(size_t)(at / chunk * 2) * columns + column];
        out[((size_t)(column / inner) * size + target) * inner + column % inner] += sum;
    }
}
