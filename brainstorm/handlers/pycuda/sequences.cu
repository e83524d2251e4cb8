// The order of time. A function without a name in C computes element i of what it is named after, for
// a loop over all of them.

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
