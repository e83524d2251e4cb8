// Random numbers by Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011). A state is a key and how many blocks of four numbers were drawn; it lies in memory, so
// that draws can be replayed.

struct State { unsigned long long key, drawn; };
struct Block { unsigned x[4]; };

static __device__ Block philox(const State &state, unsigned index)
{
    const unsigned long long number = state.drawn + index;
    Block block = {{(unsigned)number, (unsigned)(number >> 32), 0u, 0u}};
    unsigned key0 = (unsigned)state.key, key1 = (unsigned)(state.key >> 32);
    for (int round = 0; round < 10; round++) {
        const unsigned long long a = 0xD2511F53ull * block.x[0], b = 0xCD9E8D57ull * block.x[2];
        const Block last = block;
        block.x[0] = (unsigned)(b >> 32) ^ last.x[1] ^ key0;
        block.x[1] = (unsigned)b;
        block.x[2] = (unsigned)(a >> 32) ^ last.x[3] ^ key1;
        block.x[3] = (unsigned)a;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return block;
}

extern "C" __global__ void random_mask(const State *state, const float *probability, float *mask,
                                       int count)
{
    const State now = *state;
    const float limit = *probability;
    EACH(i, (count + 3u) / 4)
    {
        const Block block = philox(now, i);
        for (unsigned k = 0; k < 4 && 4 * i + k < count; k++)
            mask[4 * i + k] = (block.x[k] >> 8) * 5.9604644775390625e-8f < limit ? 1.0f : 0.0f;
    }
}

// By the method of Box and Muller: two numbers from two.
extern "C" __global__ void random_normal(const State *state, const float *mean, const float *std,
                                         float *out, int count)
{
    const State now = *state;
    const float centre = *mean, width = *std;
    EACH(i, (count + 3u) / 4)
    {
        const Block block = philox(now, i);
        for (unsigned k = 0; k < 4 && 4 * i + k < count; k++) {
            const float u = ((block.x[k & 2] >> 8) + 1) * 5.9604644775390625e-8f;
            const float angle = (block.x[k | 1] >> 8) * 3.7450703e-7f;  // 2 pi / 2^24
            const float radius = sqrtf(-2.0f * logf(u));
            out[4 * i + k] = centre + width * radius * (k & 1 ? sinf(angle) : cosf(angle));
        }
    }
}

extern "C" __global__ void advance_random(State *state, int count)
{
    if (blockIdx.x == 0 && threadIdx.x == 0) state->drawn += (count + 3u) / 4;
}
