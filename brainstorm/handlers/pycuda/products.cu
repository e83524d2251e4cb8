// Products of few rows with a small matrix: a block computes a row. In which order terms are added
// depends on the sizes alone.

#define ROW_THREADS 512  // as in recurrences.py
#define ROW_TERMS 2048

// A row of out = a @ b, for b (k, n) with rows of ldb elements, or (n, k) if it is turned; or of
// out += a @ b.
static __device__ __forceinline__ void product_of_row(const float *a, const float *b, float *out,
                                                      int n, int k, int ldb, bool turned, bool adds)
{
    __shared__ float row[ROW_TERMS], parts[ROW_THREADS];
    for (int i = threadIdx.x; i < k; i += ROW_THREADS) row[i] = a[i];
    __syncthreads();
    if (turned) {  // a warp computes four elements, whose terms its threads share
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        for (int j = 4 * warp; j < n; j += ROW_THREADS / 8) {
            const float before = adds && lane < 4 && j + lane < n ? out[j + lane] : 0.0f;
            float totals[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
            for (int i = lane; i < k; i += 32) {
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    const int at = j + u < n ? j + u : j;
                    totals[u] += row[i] * b[(size_t)at * ldb + i];
                }
            }
#pragma unroll
            for (int u = 0; u < 4; u++) {
#pragma unroll
                for (int half = 16; half > 0; half /= 2) {
                    totals[u] += __shfl_xor_sync(0xffffffffu, totals[u], half);
                }
                if (lane == u && j + u < n) out[j + u] = adds ? before + totals[u] : totals[u];
            }
        }
        return;
    }
    int columns = 32;
    while (columns < n && columns < ROW_THREADS) columns *= 2;
    const int column = threadIdx.x % columns, chunk = threadIdx.x / columns;
    const int chunks = ROW_THREADS / columns;
    for (int first = 0; first < n; first += columns) {
        const int j = first + column;
        const float before = adds && chunk == 0 && j < n ? out[j] : 0.0f;
        float total = 0.0f;
        if (j < n) {
#pragma unroll 8
            for (int i = chunk; i < k; i += chunks) total += row[i] * b[(size_t)i * ldb + j];
        }
        parts[threadIdx.x] = total;
        __syncthreads();
        if (chunk == 0 && j < n) {
            for (int other = 1; other < chunks; other++) total += parts[other * columns + column];
            out[j] = adds ? before + total : total;
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
