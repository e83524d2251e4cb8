// Rows of tables, and the order of time. A function without a name in C computes element i of what it
// is named after, for a loop over all of them.

#define EACH(i, count) \
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < (count); \
         i += gridDim.x * blockDim.x)

static __device__ __forceinline__ int row_of(const float *v, size_t i, int rows)
{
    const int row = (int)v[i];
    return row < 0 ? 0 : row < rows ? row : rows - 1;
}

// out (outer, picks, inner) = rows of table (outer, size, inner): those that v (picks) names, or with
// `each` of v (outer, picks, inner) an element for each of out.
static __device__ __forceinline__ float take_rows(const float *table, const float *v, unsigned i,
                                                  int size, int picks, int inner, int each)
{
    const unsigned column = i % inner, pick = i / inner % picks, outer = i / inner / picks;
    const int row = row_of(v, each ? i : pick, size);
    return table[((size_t)outer * size + row) * inner + column];
}

// out (outer, size, inner) += values (outer, picks, inner), each in the row that v names.
extern "C" __global__ void scatter_each(const float *values, const float *v, float *out, int columns,
                                        int size, int picks, int inner)
{
    EACH(i, columns)
    {
        const unsigned column = i % inner, outer = i / inner;
        for (int k = 0; k < picks; k++) {
            const size_t from = ((size_t)outer * picks + k) * inner + column;
            out[((size_t)outer * size + row_of(v, from, size)) * inner + column] += values[from];
        }
    }
}

// out (outer, length, inner) = the sums of each element of x and those before it, in double.
extern "C" __global__ void add_along(const float *x, float *out, int columns, int length, int inner)
{
    EACH(i, columns)
    {
        const size_t first = (size_t)(i / inner) * length * inner + i % inner;
        double total = 0;
        for (int k = 0; k < length; k++) {
            total += x[first + (size_t)k * inner];
            out[first + (size_t)k * inner] = (float)total;
        }
    }
}

// For each index the next equal one, or -1; -3 - that one for indices with an equal one before them.
extern "C" __global__ void chain_rows(const float *v, int *next, int count)
{
    EACH(i, count)
    {
        int after = i + 1, before = (int)i - 1;
        while (after < count && v[after] != v[i]) after++;
        while (before >= 0 && v[before] != v[i]) before--;
        const int following = after < count ? after : -1;
        next[i] = before < 0 ? following : -3 - following;
    }
}

// out (outer, size, inner) += m (outer, picks, inner), row v[k] += row k: by the thread of the first k
// of each row, in order. Nothing is added to what is no row.
extern "C" __global__ void add_rows(const float *m, const float *v, const int *next, float *out,
                                    int count, int size, int picks, int inner)
{
    EACH(i, count)
    {
        const unsigned column = i % inner, outer = i / inner / picks;
        int k = i / inner % picks;
        if (next[k] < -1 || !(v[k] >= 0.0f && v[k] <= size - 1)) continue;
        const float *rows = m + (size_t)outer * picks * inner + column;
        float *target = out + ((size_t)outer * size + row_of(v, k, size)) * inner + column;
        float sum = *target + rows[(size_t)k * inner];
        for (k = next[k]; k >= 0; k = -3 - next[k]) sum += rows[(size_t)k * inner];
        *target = sum;
    }
}

// One more than the last step of each sequence where the mask is not 0.
extern "C" __global__ void sequence_lengths(const float *mask, int *lengths, int steps, int batch)
{
    EACH(b, batch)
    {
        int t = steps;
        while (t > 0 && mask[(size_t)(t - 1) * batch + b] == 0.0f) t--;
        lengths[b] = t;
    }
}

static __device__ __forceinline__ float reverse_steps(const float *x, const int *lengths, unsigned i,
                                                      int steps, int batch, int width)
{
    const int column = i % width, b = i / width % batch, t = i / width / batch;
    const int length = lengths ? lengths[b] : steps, from = t < length ? length - 1 - t : t;
    return x[((size_t)from * batch + b) * width + column];
}
