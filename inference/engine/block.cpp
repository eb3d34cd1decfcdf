// A decoder block in two calls, before and after its attention: the same functions in the same order
// as one by one, without the way back between them. Only where the products are ours.

#include "numbers.h"

namespace {

// Below so many numbers one thread is quicker than waking a second one.
constexpr int64_t SERIAL = 1 << 14;

inline int some(int64_t numbers, int threads) { return numbers <= SERIAL ? 1 : threads; }

// As `kernels.py` fills them in.
struct Norm {
    const float *weight;
    float epsilon;
    int32_t wide;
};

struct Linear {
    const void *panels;
    const float *bias;
    int64_t inputs, outputs;
};

struct Block {
    Norm first, second;
    Linear in, out, up, down;
    int64_t turned, dim;
};

template <class T>
void add(T *out, const T *one, const T *other, int64_t count, int threads) {
#pragma omp parallel for simd num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < count; i++) store(out[i], load(one[i]) + load(other[i]));
}

} // namespace

// `rows` are queries, keys and values of each token. `space` takes `count` rows of the stream.
// Later: `mixed` is what attention gave; `space` takes, for each token, two rows of the stream, and
// what `up` and then `down` read.
#define BLOCK(KIND, T)                                                                            \
    extern "C" {                                                                                  \
    void rms_norm_##KIND(T *, const T *, const float *, int64_t, int64_t, float, int, int);       \
    void silu_mul_##KIND(T *, const T *, int64_t, int64_t, int);                                  \
    void rotate_##KIND(T *, const T *, const T *, int64_t, int64_t, int64_t, int64_t, int);       \
    void linear_##KIND(T *, const T *, const T *, const float *, int64_t, int64_t, int64_t, int); \
    }                                                                                             \
    namespace {                                                                                   \
    inline void norm(T *out, const T *in, const Norm &n, int64_t count, int64_t width,            \
                     int threads) {                                                               \
        rms_norm_##KIND(out, in, n.weight, count, width, n.epsilon, n.wide,                       \
                        some(count * width, threads));                                            \
    }                                                                                             \
    inline void product(T *out, const T *in, const Linear &l, int64_t count, int threads) {       \
        linear_##KIND(out, in, (const T *)l.panels, l.bias, count, l.inputs, l.outputs, threads); \
    }                                                                                             \
    }                                                                                             \
    extern "C" void enter_##KIND(T *rows, T *space, const T *stream, const T *cosines,            \
                                 const T *sines, const Block *block, int64_t count,               \
                                 int threads) {                                                   \
        const Block &b = *block;                                                                  \
        norm(space, stream, b.first, count, b.in.inputs, threads);                                \
        product(rows, space, b.in, count, threads);                                               \
        rotate_##KIND(rows, cosines, sines, count, b.turned, b.dim, b.in.outputs,                 \
                      some(count * b.turned * b.dim, threads));                                   \
    }                                                                                             \
    extern "C" void leave_##KIND(T *out, T *space, const T *stream, const T *mixed,               \
                                 const Block *block, int64_t count, int threads) {                \
        const Block &b = *block;                                                                  \
        int64_t width = b.out.outputs, numbers = count * width;                                   \
        T *whole = space, *part = whole + numbers, *wide = part + numbers,                        \
          *narrow = wide + count * b.up.outputs;                                                  \
        product(part, mixed, b.out, count, threads);                                              \
        add(whole, stream, part, numbers, some(numbers, threads));                                \
        norm(part, whole, b.second, count, width, threads);                                       \
        product(wide, part, b.up, count, threads);                                                \
        silu_mul_##KIND(narrow, wide, count, b.down.inputs, some(count * b.down.inputs, threads)); \
        product(part, narrow, b.down, count, threads);                                            \
        add(out, whole, part, numbers, some(numbers, threads));                                   \
    }

#if defined(__AVX512F__)
BLOCK(float32, float)
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
BLOCK(bfloat16, bfloat16)
#endif
#endif
