// What op-trees have no type for.

#define EACH(i, count) \
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < (count); \
         i += gridDim.x * blockDim.x)

// Round floats (n0, n1, n2), whose last axis is contiguous, to bfloat16 in rows of `width`.
extern "C" __global__ void to_bfloat16(const float *source, unsigned short *target, int n0, int n1,
                                       int n2, int step0, int step1, int width)
{
    EACH(i, (unsigned)n0 * n1 * n2)
    {
        const unsigned row = i / n2, column = i % n2;
        const float value = source[(size_t)(row / n1) * step0 + (size_t)(row % n1) * step1 + column];
        const unsigned bits = __float_as_uint(value);
        // To the nearest, of equally near ones to the even one; NaN stays NaN.
        const unsigned rounded = bits + 0x7fff + (bits >> 16 & 1);
        target[(size_t)row * width + column] = (value == value ? rounded : bits | 0x400000) >> 16;
    }
}
