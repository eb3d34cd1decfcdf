// Decoder blocks in few calls: the same functions in the same order as one by one, without the way
// back between them. Only where the products are ours. `structs.py` is the other side of the structs.

#include "numbers.h"

// The functions of the other files for one dtype.
template <class T> struct Functions;

#define FUNCTIONS(KIND, T)                                                                         \
    extern "C" {                                                                                   \
    void rms_norm_##KIND(T *, const T *, const float *, int64_t, int64_t, float, int, int);        \
    void silu_mul_##KIND(T *, const T *, int64_t, int64_t, int);                                   \
    void rotate_##KIND(T *, const T *, const T *, int64_t, int64_t, int64_t, int64_t, int);        \
    void linear_##KIND(T *, const T *, const T *, const float *, int64_t, int64_t, int64_t, int);  \
    void keep_##KIND(T *, const T *, const int64_t *, int64_t, int64_t, int64_t, int64_t, int64_t, \
                     int64_t, int);                                                                \
    void attend_##KIND(T *, const T *, const T *, const T *, const int64_t *, const Span *,        \
                       const float *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,        \
                       int64_t, int64_t, int64_t, int64_t, float, float, int);                     \
    }                                                                                              \
    template <> struct Functions<T> {                                                              \
        static constexpr auto &rms_norm = rms_norm_##KIND, &silu_mul = silu_mul_##KIND,            \
                              &rotate = rotate_##KIND, &linear = linear_##KIND,                    \
                              &keep = keep_##KIND, &attend = attend_##KIND;                        \
    };

namespace {

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

struct Attention {
    const float *sinks;
    int64_t heads, kv_heads, dim, window;
    float scaling, softcap;
};

struct Block {
    Norm first, second;
    Linear in, out, up, down;
    Attention attention;
};

struct Pools {
    void *keys, *values;
};

struct Step {
    const Pools *pools;
    const int64_t *slots, *table;
    const Span *spans;
    int64_t span_count, table_width, block_tokens;
};

template <class T> struct Pass {
    const Block &block;
    int64_t count;
    int threads;

    void norm(T *out, const T *in, const Norm &n, int64_t width) const {
        Functions<T>::rms_norm(out, in, n.weight, count, width, n.epsilon, n.wide, threads);
    }

    void product(T *out, const T *in, const Linear &l) const {
        Functions<T>::linear(out, in, (const T *)l.panels, l.bias, count, l.inputs, l.outputs,
                             threads);
    }

    void add(T *out, const T *one, const T *other, int64_t width) const {
        int some = threads_for(count * width, threads);
#pragma omp parallel for simd num_threads(some) if (some > 1)
        for (int64_t i = 0; i < count * width; i++) store(out[i], load(one[i]) + load(other[i]));
    }

    // `rows` are queries, keys and values of each token; `space` takes `count` rows of the stream.
    void enter(T *rows, T *space, const T *stream, const T *cosines, const T *sines) const {
        norm(space, stream, block.first, block.in.inputs);
        product(rows, space, block.in);
        const Attention &a = block.attention;
        Functions<T>::rotate(rows, cosines, sines, count, a.heads + a.kv_heads, a.dim,
                             block.in.outputs, threads);
    }

    // `rows` are what `enter` gave.
    void attend(T *mixed, const T *rows, const Pools &pools, const Step &step) const {
        const Attention &a = block.attention;
        int64_t width = block.in.outputs;
        const T *news[] = {rows + a.heads * a.dim, rows + (a.heads + a.kv_heads) * a.dim};
        T *olds[] = {(T *)pools.keys, (T *)pools.values};
        for (int i = 0; i < 2; i++)
            Functions<T>::keep(olds[i], news[i], step.slots, count, a.kv_heads, step.block_tokens,
                               a.dim, width, a.dim, threads);
        Functions<T>::attend(mixed, rows, olds[0], olds[1], step.table, step.spans, a.sinks,
                             step.span_count, a.heads, a.kv_heads, a.dim, a.dim, step.block_tokens,
                             step.table_width, width, a.dim, a.window, a.scaling, a.softcap, threads);
    }

    // `mixed` is what attention gave; `space` takes, for each token, two rows of the stream, and what
    // `up` gives and `down` reads.
    void leave(T *out, T *space, const T *stream, const T *mixed) const {
        int64_t width = block.out.outputs;
        T *whole = space, *part = whole + count * width, *wide = part + count * width,
          *narrow = wide + count * block.up.outputs;
        product(part, mixed, block.out);
        add(whole, stream, part, width);
        norm(part, whole, block.second, width);
        product(wide, part, block.up);
        Functions<T>::silu_mul(narrow, wide, count, block.down.inputs, threads);
        product(part, narrow, block.down);
        add(out, whole, part, width);
    }
};

// `space` takes, for each token, what `enter` and `attend` give and the most that `leave` needs.
template <class T>
void run(T *out, T *space, const T *stream, const T *cosines, const T *sines,
         const Block *const *blocks, const Step &step, int64_t first, int64_t layers, int64_t count,
         int threads) {
    for (int64_t i = 0; i < layers; i++) {
        Pass<T> pass{*blocks[i], count, threads};
        T *mixed = space + count * blocks[i]->in.outputs, *rest = mixed + count * blocks[i]->out.inputs;
        pass.enter(space, rest, stream, cosines, sines);
        pass.attend(mixed, space, step.pools[first + i], step);
        pass.leave(out, rest, stream, mixed);
        stream = out;
    }
}

} // namespace

#define BLOCK(KIND, T)                                                                             \
    FUNCTIONS(KIND, T)                                                                             \
    extern "C" void enter_##KIND(T *rows, T *space, const T *stream, const T *cosines,             \
                                 const T *sines, const Block *block, int64_t count, int threads) { \
        Pass<T>{*block, count, threads}.enter(rows, space, stream, cosines, sines);                \
    }                                                                                              \
    extern "C" void leave_##KIND(T *out, T *space, const T *stream, const T *mixed,                \
                                 const Block *block, int64_t count, int threads) {                 \
        Pass<T>{*block, count, threads}.leave(out, space, stream, mixed);                          \
    }                                                                                              \
    extern "C" void run_##KIND(T *out, T *space, const T *stream, const T *cosines,                \
                               const T *sines, const Block *const *blocks, const Step *step,       \
                               int64_t first, int64_t layers, int64_t count, int threads) {        \
        run(out, space, stream, cosines, sines, blocks, *step, first, layers, count, threads);     \
    }

#if defined(__AVX512F__)
BLOCK(float32, float)
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
BLOCK(bfloat16, bfloat16)
#endif
#endif
