// Convolution by matrix products, and pooling. Images are (N, D, H, W, C); those of two axes have
// D = 1. A function computes element i of what it is named after, for a loop over all of them.

struct Axis { int size, filter, outputs, padding, stride, dilation; };
struct Axes { Axis d, h, w; };

static __device__ __forceinline__ Axes axes_of(int d0, int d1, int d2, int d3, int d4, int d5,
                                               int h0, int h1, int h2, int h3, int h4, int h5,
                                               int w0, int w1, int w2, int w3, int w4, int w5)
{
    return {{d0, d1, d2, d3, d4, d5}, {h0, h1, h2, h3, h4, h5}, {w0, w1, w2, w3, w4, w5}};
}

struct Element { int n, z, y, x, c; };

// The indices of element i of an array (N, depth, height, width, channels).
static __device__ __forceinline__ Element element_of(unsigned i, int depth, int height, int width,
                                                     int channels)
{
    unsigned rest = i;
    const int c = rest % channels; rest /= channels;
    const int x = rest % width; rest /= width;
    const int y = rest % height; rest /= height;
    return {(int)(rest / depth), (int)(rest % depth), y, x, c};
}

// Where a cell of a filter lies that is applied for an output; not inside: -1.
static __device__ __forceinline__ int place(const Axis &a, int output, int cell)
{
    const int at = output * a.stride - a.padding + cell * a.dilation;
    return at >= 0 && at < a.size ? at : -1;
}

// For which output a cell of a filter lies at a place; for none: -1.
static __device__ __forceinline__ int output_of(const Axis &a, int at, int cell)
{
    const int start = at + a.padding - cell * a.dilation, output = start / a.stride;
    return start >= 0 && start % a.stride == 0 && output < a.outputs ? output : -1;
}

// columns (groups, rows, cells * channels of a group), a row for each output.
static __device__ __forceinline__ float image_to_columns(const float *images, unsigned i, int rows,
                                                         int channels, int groups, const Axes &axes)
{
    const Axis d = axes.d, h = axes.h, w = axes.w;
    const int size = channels / groups;
    const auto [column, kd, kh, kw, c] = element_of(i, d.filter, h.filter, w.filter, size);
    const int group = groups > 1 ? column / rows : 0, row = column - group * rows;
    const auto [n, o, p, q, all] = element_of(row, d.outputs, h.outputs, w.outputs, 1);
    const int z = place(d, o, kd), y = place(h, p, kh), x = place(w, q, kw);
    const size_t pixel = (((size_t)n * d.size + z) * h.size + y) * w.size + x;
    return (z < 0 || y < 0 || x < 0) ? 0.0f : images[pixel * channels + group * size + c];
}

// The transposed operation: each element of the images is the sum of its places in the columns.
static __device__ __forceinline__ float columns_to_image(const float *columns, unsigned i, int rows,
                                                         int channels, int groups, const Axes &axes)
{
    const Axis d = axes.d, h = axes.h, w = axes.w;
    const int size = channels / groups, width = d.filter * h.filter * w.filter * size;
    const auto [n, z, y, x, channel] = element_of(i, d.size, h.size, w.size, channels);
    const int group = channel / size, c = channel % size;
    float sum = 0.0f;
    for (int kd = 0; kd < d.filter; kd++) {
        const int o = output_of(d, z, kd);
        for (int kh = 0; o >= 0 && kh < h.filter; kh++) {
            const int p = output_of(h, y, kh);
            for (int kw = 0; p >= 0 && kw < w.filter; kw++) {
                const int q = output_of(w, x, kw);
                if (q < 0) continue;
                const int row = ((n * d.outputs + o) * h.outputs + p) * w.outputs + q;
                const int cell = (kd * h.filter + kh) * w.filter + kw;
                sum += columns[((size_t)group * rows + row) * width + cell * size + c];
            }
        }
    }
    return sum;
}

// -- pooling: an `Axis` has the window as its filter ------------------------------------------------

extern "C" __global__ void maximum_pool(const float *images, float *outputs, float *argmax, int count,
                                        int channels, const Axes axes)
{
    const Axis h = axes.h, w = axes.w;
    EACH(i, count)
    {
        const auto [n, o, p, q, c] = element_of(i, 1, h.outputs, w.outputs, channels);
        float largest = 0.0f;
        int found = -1;
        for (int kh = 0; kh < h.filter; kh++) {
            for (int kw = 0; kw < w.filter; kw++) {
                const int y = place(h, p, kh), x = place(w, q, kw);
                if (y < 0 || x < 0) continue;
                const int index = (y * w.size + x) * channels + c;
                const float value = images[(size_t)n * h.size * w.size * channels + index];
                // The first NaN is the largest.
                if (found < 0 || value > largest || (value != value && largest == largest)) {
                    largest = value;
                    found = index;
                }
            }
        }
        outputs[i] = largest;
        argmax[i] = (float)found;
    }
}

static __device__ __forceinline__ float average_pool(const float *images, unsigned i, int channels,
                                                     const Axes &axes)
{
    const Axis h = axes.h, w = axes.w;
    const auto [n, o, p, q, c] = element_of(i, 1, h.outputs, w.outputs, channels);
    float sum = 0.0f;
    int inside = 0;
    for (int kh = 0; kh < h.filter; kh++) {
        for (int kw = 0; kw < w.filter; kw++) {
            const int y = place(h, p, kh), x = place(w, q, kw);
            if (y < 0 || x < 0) continue;
            sum += images[(((size_t)n * h.size + y) * w.size + x) * channels + c];
            inside++;
        }
    }
    return inside ? sum / inside : 0.0f;
}

static __device__ __forceinline__ int inside(const Axis &a, int output)
{
    const int start = output * a.stride - a.padding, stop = start + a.filter;
    return (stop < a.size ? stop : a.size) - (start > 0 ? start : 0);
}

// Deltas of the inputs; argmax is null for the average.
static __device__ __forceinline__ float pool_deltas(const float *out_deltas, const float *argmax,
                                                    unsigned i, int channels, const Axes &axes)
{
    const Axis h = axes.h, w = axes.w;
    const auto [n, z, y, x, c] = element_of(i, 1, h.size, w.size, channels);
    const int index = (y * w.size + x) * channels + c;
    float sum = 0.0f;
    for (int kh = h.filter - 1; kh >= 0; kh--) {
        const int p = output_of(h, y, kh);
        for (int kw = w.filter - 1; p >= 0 && kw >= 0; kw--) {
            const int q = output_of(w, x, kw);
            if (q < 0) continue;
            const size_t output = (((size_t)n * h.outputs + p) * w.outputs + q) * channels + c;
            if (!argmax) sum += out_deltas[output] / (inside(h, p) * inside(w, q));
            else if ((int)argmax[output] == index) sum += out_deltas[output];
        }
    }
    return sum;
}
