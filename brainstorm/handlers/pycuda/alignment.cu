// Connectionist temporal classification (Graves et al., ICML 2006, section 4): a block of threads
// for each sequence, whose threads share the states: blank, label, blank, ..., label, blank.

#define NOTHING (-INFINITY)
#define LOWEST (-3.402823466e38f)

static __device__ float log_add(float a, float b)
{
    const float largest = a > b ? a : b, smallest = a > b ? b : a;
    return smallest == NOTHING ? largest : largest + log1pf(expf(smallest - largest));
}

// The largest value, or the sum, of those of all threads; of 256 at most.
template <bool SUM> static __device__ float of_all(float value, float *shared)
{
    const int i = threadIdx.x;
    shared[i] = value;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (i < half) {
            const float other = shared[i + half];
            shared[i] = SUM ? shared[i] + other : other > shared[i] ? other : shared[i];
        }
        __syncthreads();
    }
    const float result = shared[0];
    __syncthreads();
    return result;
}

// The largest value of those of all threads, or the lowest number if there is none; the states of a
// step become relative to it.
static __device__ float subtract_largest(float *states, int count, float largest, float *shared)
{
    largest = of_all<false>(largest, shared);
    largest = largest < LOWEST ? LOWEST : largest;
    for (int s = threadIdx.x; s < count; s += blockDim.x) states[s] -= largest;
    __syncthreads();
    return largest;
}

struct Sequence {
    const float *log_ps, *labels;
    int b, batch, classes;

    __device__ int label(int state) const
    {
        return state & 1 && is_class(state / 2) ? (int)labels[(size_t)(state / 2) * batch + b] : 0;
    }
    __device__ bool is_class(int place) const
    {
        const float label = labels[(size_t)place * batch + b];
        return label > -1.0f && label < classes;
    }
    // Whether a state can be reached from the one before the last.
    __device__ bool skips(int state) const
    {
        return state >= 2 && label(state) != 0 && label(state) != label(state - 2);
    }
    __device__ float log_p(int t, int label) const
    {
        return log_ps[((size_t)t * batch + b) * classes + label];
    }
};

// log_ps are the logarithms of the probabilities (T, B, K); forward (B, T, S) and backward (B, 2, S)
// are memory to work with, S = 2 T + 1.
extern "C" __global__ void align(const float *log_ps, const float *labels, const float *mask,
                                 float *loss, float *deltas, float *forward, float *backward,
                                 int steps, int batch, int classes)
{
    __shared__ float shared[256];
    const int b = blockIdx.x, first = threadIdx.x, threads = blockDim.x, most = 2 * steps + 1;
    const Sequence sequence = {log_ps, labels, b, batch, classes};
    forward += (size_t)b * steps * most;
    backward += (size_t)b * 2 * most;
    bool wrong = false;
    int count = 0;
    for (; count < steps && labels[(size_t)count * batch + b] != 0.0f; count++)
        wrong |= !sequence.is_class(count);
    const int states = 2 * count + 1;

    // ln p of each state with all before it, relative to the most probable state of the step.
    double peaks = 0.0;
    const float *row = nullptr;
    for (int t = 0; t < steps; t++) {
        float *out = forward + (size_t)t * most;
        const bool off = mask && mask[(size_t)t * batch + b] == 0.0f;
        float largest = NOTHING;
        for (int s = first; s < states; s += threads) {
            // Before the first step: as if in a blank.
            float value = row ? row[s] : s ? NOTHING : 0.0f;
            if (!off) {
                if (s >= 1) value = log_add(value, row ? row[s - 1] : s == 1 ? 0.0f : NOTHING);
                if (row && sequence.skips(s)) value = log_add(value, row[s - 2]);
                value += sequence.log_p(t, sequence.label(s));
            }
            out[s] = value;
            largest = value > largest ? value : largest;
        }
        peaks += subtract_largest(out, states, largest, shared);
        row = out;
    }
    float end = row ? row[states - 1] : 0.0f;
    if (count) end = log_add(end, row[states - 2]);
    const float total = wrong ? INFINITY - INFINITY : (float)(peaks + end);
    if (first == 0) loss[b] = -total;

    // ln p of all after each state; the deltas are probabilities without and with the labels.
    float *after = backward, *other = backward + most;
    for (int s = first; s < states; s += threads) after[s] = s >= states - 2 ? 0.0f : NOTHING;
    __syncthreads();
    for (int t = steps - 1; t >= 0; t--) {
        float *out = forward + (size_t)t * most, largest = NOTHING, sum = 0.0f;
        float *delta = deltas + ((size_t)t * batch + b) * classes;
        const bool off = mask && mask[(size_t)t * batch + b] == 0.0f;
        for (int s = first; s < states; s += threads) {
            out[s] += after[s];
            largest = out[s] > largest ? out[s] : largest;
        }
        subtract_largest(out, states, largest, shared);
        for (int s = first; s < states; s += threads) sum += out[s] = expf(out[s]);
        sum = of_all<true>(sum, shared);
        sum = sum < 1.0f ? 1.0f : sum;  // one term is exp(0), unless there is no path
        for (int k = first; k < classes; k += threads) {
            float share = 0.0f;
            for (int s = 0; s < states; s++) share += sequence.label(s) == k ? out[s] : 0.0f;
            const bool silent = off || total == NOTHING;
            const float slope = expf(sequence.log_p(t, k)) - share / sum;
            delta[k] = silent ? 0.0f : wrong ? total : slope;
        }
        largest = NOTHING;
        for (int s = first; s < states; s += threads) {
            float value = after[s];
            if (!off) {
                value += sequence.log_p(t, sequence.label(s));
                for (int next = s + 1; next <= s + 2 && next < states; next++)
                    if (next == s + 1 || sequence.skips(next))
                        value = log_add(value, after[next] + sequence.log_p(t, sequence.label(next)));
            }
            other[s] = value;
            largest = value > largest ? value : largest;
        }
        subtract_largest(other, states, largest, shared);
        float *const swapped = after;
        after = other;
        other = swapped;
    }
}
