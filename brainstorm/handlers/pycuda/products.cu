// Products of few rows with a small matrix: a block computes a row. In which order terms are added
// depends on the sizes alone.

// As in recurrences.py; a thread of a warp computes four of the columns at a time.
#define ROW_THREADS 512
#define ROW_COLUMNS 128
#define ROW_TERMS 2048

// A row of out = a @ b, for b (k, n) with rows of ldb elements, or (n, k) if it is turned; or of
// out += a @ b.
static __device__ __forceinline__ void product_of_row(const float *a, const float *b, float *out,
                                                      int n, int k, int ldb, bool turned, bool adds)
{
    __shared__ float row[ROW_TERMS], parts[ROW_THREADS / 32][ROW_COLUMNS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = ROW_THREADS / 32;
    for (int i = threadIdx.x; i < k; i += ROW_THREADS) row[i] = a[i];
    __syncthreads();
    if (turned) {  // a warp computes four elements, whose terms its threads share
        for (int first = 4 * warp; first < n; first += 4 * warps) {
            const int mine = first + lane / 8;
            const float before = adds && lane % 8 == 0 && mine < n ? out[mine] : 0.0f;
            float totals[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
            for (int i = lane; i < k; i += 32) {
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    const int j = first + u < n ? first + u : first;
                    totals[u] += row[i] * b[(size_t)j * ldb + i];
                }
            }
            // Half of the threads go on with two of the elements, a quarter with one.
            const bool high = lane & 16, odd = lane & 8;
#pragma unroll
            for (int u = 0; u < 2; u++) {
                const float given = high ? totals[u] : totals[u + 2];
                totals[u] = high ? totals[u + 2] : totals[u];
                totals[u] += __shfl_xor_sync(0xffffffffu, given, 16);
            }
            float total = odd ? totals[1] : totals[0];
            total += __shfl_xor_sync(0xffffffffu, odd ? totals[0] : totals[1], 8);
#pragma unroll
            for (int half = 4; half > 0; half /= 2) {
                total += __shfl_xor_sync(0xffffffffu, total, half);
            }
            if (lane % 8 == 0 && mine < n) out[mine] = before + total;
        }
        return;
    }
    for (int first = 0; first < n; first += ROW_COLUMNS) {  // a warp adds every so-manieth term
        const int mine = first + threadIdx.x;
        const bool is_mine = threadIdx.x < ROW_COLUMNS && mine < n;
        const float before = adds && is_mine ? out[mine] : 0.0f;
        float totals[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 5
        for (int i = warp; i < k; i += warps) {
            const float x = row[i];
#pragma unroll
            for (int u = 0; u < 4; u++) {
                const int j = first + 32 * u + lane;
                if (j < n) totals[u] += x * b[(size_t)i * ldb + j];
            }
        }
#pragma unroll
        for (int u = 0; u < 4; u++) parts[warp][32 * u + lane] = totals[u];
        __syncthreads();
        if (is_mine) {
            float total = 0.0f;
#pragma unroll
            for (int other = 0; other < warps; other++) total += parts[other][threadIdx.x];
            out[mine] = before + total;
        }
        __syncthreads();
    }
}

extern "C" __global__ __launch_bounds__(ROW_THREADS)
void few_rows(const float *a, const float *b, float *out, int n, int k, int lda, int ldb, int ldc,
              int turned, int adds)
{
    product_of_row(a + (size_t)blockIdx.x * lda, b, out + (size_t)blockIdx.x * ldc, n, k, ldb,
                   turned, adds);
}
