// What a step does between its matrix products, each in one pass over memory.
//
// Plain C++ over raw memory. `compiling.py` compiles this file once for each kind of processor, and
// `kernels.py` says what each function gets. Arithmetic is float32; outside attention, results in
// between are rounded to the stream's dtype where transformers rounds them, so that bfloat16 is no
// further from float32 here than there. A NaN that comes in comes out.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct bfloat16 {
    uint16_t bits;
};

inline float load(float value) { return value; }

inline float load(bfloat16 value) {
    uint32_t wide = uint32_t(value.bits) << 16;
    float out;
    std::memcpy(&out, &wide, 4);
    return out;
}

inline void store(float &place, float value) { place = value; }

// Round to nearest, ties to even; a NaN stays one.
inline void store(bfloat16 &place, float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, 4);
    uint32_t rounded = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
    place.bits = uint16_t(value == value ? rounded : 0x7fc0);
}

template <class T> inline float rounded(float value) {
    T place;
    store(place, value);
    return load(place);
}

// exp within 2 units in the last place, without a branch, so that loops over it become vectors.
inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float whole = std::rint(x * 1.44269504f);
    float rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    int32_t exponent = (int32_t(whole) + 127) << 23;
    float power;
    std::memcpy(&power, &exponent, 4);
    return sum * power;
}

template <class T>
void rms_norm(T *out, const T *in, const float *weight, int64_t rows, int64_t width, float epsilon,
              int wide, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        const T *x = in + row * width;
        T *y = out + row * width;
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < width; i++) squares += load(x[i]) * load(x[i]);
        float factor = 1.0f / std::sqrt(squares / float(width) + epsilon);
        if (wide) {
#pragma omp simd
            for (int64_t i = 0; i < width; i++) store(y[i], load(x[i]) * factor * weight[i]);
        } else {
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
                store(y[i], rounded<T>(load(x[i]) * factor) * weight[i]);
        }
    }
}

template <class T>
void silu_mul(T *out, const T *in, int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        const T *gate = in + 2 * row * width, *up = gate + width;
        T *y = out + row * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            float g = load(gate[i]);
            store(y[i], rounded<T>(g / (1.0f + exponential(-g))) * load(up[i]));
        }
    }
}

template <class T>
void rotate(T *in, const T *cosines, const T *sines, int64_t rows, int64_t heads, int64_t dim,
            int64_t stride, int threads) {
    int64_t half = dim / 2;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        const T *c = cosines + row * dim, *s = sines + row * dim;
        for (int64_t head = 0; head < heads; head++) {
            T *low = in + row * stride + head * dim, *high = low + half;
#pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                float a = load(low[i]), b = load(high[i]);
                store(low[i], rounded<T>(a * load(c[i])) - rounded<T>(b * load(s[i])));
                store(high[i],
                      rounded<T>(b * load(c[half + i])) + rounded<T>(a * load(s[half + i])));
            }
        }
    }
}

// Keys and values of one layer: [blocks, kv_heads, block, dim].
template <class T>
void keep(T *pool, const T *in, const int64_t *slots, int64_t rows, int64_t heads, int64_t block,
          int64_t dim, int64_t row_stride, int64_t head_stride) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t number = slots[row] / block, place = slots[row] % block;
        for (int64_t head = 0; head < heads; head++)
            std::memcpy(pool + ((number * heads + head) * block + place) * dim,
                        in + row * row_stride + head * head_stride, dim * sizeof(T));
    }
}

// Sixteen numbers at once, in whatever registers the processor has.
typedef float lanes __attribute__((vector_size(64)));
typedef float lanes8 __attribute__((vector_size(32)));
typedef float lanes4 __attribute__((vector_size(16)));
typedef uint32_t words16 __attribute__((vector_size(64)));
typedef uint16_t halves16 __attribute__((vector_size(32)));

inline lanes load16(const float *place) {
    lanes out;
    std::memcpy(&out, place, sizeof out);
    return out;
}

inline lanes load16(const bfloat16 *place) {
    halves16 bits;
    std::memcpy(&bits, place, sizeof bits);
    return (lanes)(__builtin_convertvector(bits, words16) << 16);
}

inline float total(lanes a) {
    lanes8 b = __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7) +
               __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
    lanes4 c = __builtin_shufflevector(b, b, 0, 1, 2, 3) + __builtin_shufflevector(b, b, 4, 5, 6, 7);
    return (c[0] + c[2]) + (c[1] + c[3]);
}

// DIM is the width where it is one of the common ones, so that sums stay in registers; else 0.
template <int DIM, class T>
inline void dots(float *out, int64_t step, const float *queries, int64_t count, const T *key,
                 int64_t width, float scaling) {
    for (int64_t g = 0; g < count; g++) {
        const float *query = queries + g * width;
        float sum = 0;
        if (DIM) {
            lanes parts = load16(query) * load16(key);
            for (int i = 16; i < DIM; i += 16) parts += load16(query + i) * load16(key + i);
            sum = total(parts);
        } else
            for (int64_t i = 0; i < width; i++) sum += query[i] * load(key[i]);
        out[g * step] = sum * scaling;
    }
}

// Adds weighted rows, `count` of them one after the other.
template <int DIM, class T>
inline void add(float *sum, const float *weights, const T *rows, int64_t count, int64_t width) {
    if (DIM) {
        lanes parts[DIM / 16 + 1];
        for (int i = 0; i < DIM / 16; i++) parts[i] = load16(sum + 16 * i);
        for (int64_t t = 0; t < count; t++)
            for (int i = 0; i < DIM / 16; i++)
                parts[i] += weights[t] * load16(rows + t * DIM + 16 * i);
        for (int i = 0; i < DIM / 16; i++) std::memcpy(sum + 16 * i, &parts[i], sizeof(lanes));
    } else
        for (int64_t t = 0; t < count; t++)
            for (int64_t i = 0; i < width; i++) sum[i] += weights[t] * load(rows[t * width + i]);
}

struct Shape {
    int64_t rows, heads, kv_heads, key_dim, value_dim, block, table_width, query_row, query_head,
        window;
    float scaling, softcap;

    template <class T>
    const T *place(const T *pool, int64_t number, int64_t head, int64_t row, int64_t dim) const {
        return pool + ((number * kv_heads + head) * block + row) * dim;
    }
};

// A block lies anywhere, so the processor cannot guess it: ask for the next one early.
template <class T> inline void fetch(const T *rows, int64_t count) {
    for (int64_t i = 0; i < count; i += int64_t(64 / sizeof(T))) __builtin_prefetch(rows + i);
}

// One query for each sequence. Heads that share keys go over them together.
template <int DIM, class T>
void attend_one(T *out, const T *query, const T *keys, const T *values, const int64_t *blocks,
                int64_t length, const float *sinks, const Shape &s, int64_t kv_head,
                std::vector<float> &space) {
    int64_t shared = s.heads / s.kv_heads;
    int64_t first = s.window > 0 && length > s.window ? length - s.window : 0;
    int64_t seen = length - first;
    space.resize(shared * (seen + s.key_dim) + s.value_dim);
    float *scores = space.data(), *q = scores + shared * seen, *sum = q + shared * s.key_dim;
    for (int64_t g = 0; g < shared; g++)
        for (int64_t i = 0; i < s.key_dim; i++)
            q[g * s.key_dim + i] = load(query[(kv_head * shared + g) * s.query_head + i]);
    for (int64_t t = first; t < length;) {
        int64_t place = t % s.block, stop = t + s.block - place;
        const T *key = s.place(keys, blocks[t / s.block], kv_head, place, s.key_dim);
        if (stop < length)
            fetch(s.place(keys, blocks[stop / s.block], kv_head, 0, s.key_dim), s.block * s.key_dim);
        for (; t < length && t < stop; t++, key += s.key_dim)
            dots<DIM>(scores + t - first, seen, q, shared, key, s.key_dim, s.scaling);
    }
    fetch(s.place(values, blocks[first / s.block], kv_head, 0, s.value_dim), s.block * s.value_dim);
    for (int64_t g = 0; g < shared; g++) {
        int64_t head = kv_head * shared + g;
        float *score = scores + g * seen;
        if (s.softcap > 0)
            for (int64_t t = 0; t < seen; t++)
                score[t] = std::tanh(score[t] / s.softcap) * s.softcap;
        float highest = sinks ? sinks[head] : score[0];
        for (int64_t t = 0; t < seen; t++) highest = score[t] > highest ? score[t] : highest;
        float total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t t = 0; t < seen; t++) {
            score[t] = exponential(score[t] - highest);
            total += score[t];
        }
        if (sinks) total += exponential(sinks[head] - highest);
        std::memset(sum, 0, s.value_dim * sizeof(float));
        for (int64_t t = first; t < length;) {
            int64_t place = t % s.block, count = s.block - place;
            if (count > length - t) count = length - t;
            const T *rows = s.place(values, blocks[t / s.block], kv_head, place, s.value_dim);
            if (g == 0 && t + count < length)
                fetch(s.place(values, blocks[t / s.block + 1], kv_head, 0, s.value_dim),
                      s.block * s.value_dim);
            add<DIM>(sum, score + t - first, rows, count, s.value_dim);
            t += count;
        }
        for (int64_t i = 0; i < s.value_dim; i++)
            store(out[head * s.value_dim + i], sum[i] / total);
    }
}

template <int DIM, class T>
void attend(T *out, const T *query, const T *keys, const T *values, const int64_t *table,
            const int64_t *lengths, const float *sinks, const Shape &s, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<float> space;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < s.rows * s.kv_heads; task++) {
            int64_t row = task / s.kv_heads;
            attend_one<DIM>(out + row * s.heads * s.value_dim, query + row * s.query_row, keys,
                            values, table + row * s.table_width, lengths[row], sinks, s,
                            task % s.kv_heads, space);
        }
    }
}

template <class T>
void attend_any(T *out, const T *query, const T *keys, const T *values, const int64_t *table,
                const int64_t *lengths, const float *sinks, const Shape &s, int threads) {
    int64_t dim = s.key_dim == s.value_dim ? s.key_dim : 0;
    auto *known = dim == 64 ? attend<64, T> : dim == 128 ? attend<128, T> : attend<0, T>;
    known(out, query, keys, values, table, lengths, sinks, s, threads);
}

// The generator of torch on the CPU, so that a seed draws the same tokens with these kernels and
// without them.
struct Twister {
    uint32_t words[624];
    int64_t next;
};

inline uint32_t twisted(uint32_t low, uint32_t high, uint32_t far) {
    uint32_t mixed = (low & 0x80000000u) | (high & 0x7fffffffu);
    return far ^ (mixed >> 1) ^ (high & 1 ? 0x9908b0dfu : 0u);
}

void refill(uint32_t *words) {
#pragma omp simd safelen(16)
    for (int i = 0; i < 227; i++) words[i] = twisted(words[i], words[i + 1], words[i + 397]);
#pragma omp simd safelen(16)
    for (int i = 227; i < 623; i++) words[i] = twisted(words[i], words[i + 1], words[i - 227]);
    words[623] = twisted(words[623], words[0], words[396]);
}

inline uint32_t tempered(uint32_t word) {
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680u;
    word ^= (word << 15) & 0xefc60000u;
    return word ^ (word >> 18);
}

// The index of the largest chance / noise, where noise is exponential: -log(1 - u). That is at
// least u, so a logarithm is taken only of what may still win.
int64_t race(Twister &twister, const float *chances, int64_t size) {
    float best = -1.0f;
    int64_t winner = 0;
    double uniform[312];
    for (int64_t done = 0; done < size;) {
        if (twister.next >= 624) {
            refill(twister.words);
            twister.next = 0;
        }
        int64_t count = (624 - twister.next) / 2;
        if (count > size - done) count = size - done;
        const uint32_t *words = twister.words + twister.next;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            uint64_t high = tempered(words[2 * i]) & 0x1fffffu;
            uniform[i] = double(int64_t(high << 32 | tempered(words[2 * i + 1]))) * 0x1p-53;
        }
        for (int64_t i = 0; i < count; i++) {
            float chance = chances[done + i];
            if (!(double(chance) > 0.999999 * double(best) * uniform[i])) continue;
            float quotient = chance / float(-std::log1p(-uniform[i]));
            if (quotient > best) {
                best = quotient;
                winner = done + i;
            }
        }
        twister.next += 2 * count;
        done += count;
    }
    return winner;
}

} // namespace

extern "C" void seed(Twister *twister, uint64_t seed) {
    twister->words[0] = uint32_t(seed);
    for (uint32_t i = 1; i < 624; i++) {
        uint32_t last = twister->words[i - 1];
        twister->words[i] = 1812433253u * (last ^ (last >> 30)) + i;
    }
    twister->next = 624;
}

extern "C" void races(int64_t *winners, Twister *const *twisters, const float *chances, int64_t rows,
                      int64_t size, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++)
        winners[row] = race(*twisters[row], chances + row * size, size);
}

#define KERNELS(KIND, T)                                                                           \
    extern "C" void rms_norm_##KIND(T *out, const T *in, const float *weight, int64_t rows,        \
                                    int64_t width, float epsilon, int wide, int threads) {         \
        rms_norm(out, in, weight, rows, width, epsilon, wide, threads);                            \
    }                                                                                              \
    extern "C" void silu_mul_##KIND(T *out, const T *in, int64_t rows, int64_t width,              \
                                    int threads) {                                                 \
        silu_mul(out, in, rows, width, threads);                                                   \
    }                                                                                              \
    extern "C" void rotate_##KIND(T *in, const T *cosines, const T *sines, int64_t rows,           \
                                  int64_t heads, int64_t dim, int64_t stride, int threads) {       \
        rotate(in, cosines, sines, rows, heads, dim, stride, threads);                             \
    }                                                                                              \
    extern "C" void keep_##KIND(T *pool, const T *in, const int64_t *slots, int64_t rows,          \
                                int64_t heads, int64_t block, int64_t dim, int64_t row_stride,     \
                                int64_t head_stride) {                                             \
        keep(pool, in, slots, rows, heads, block, dim, row_stride, head_stride);                   \
    }                                                                                              \
    extern "C" void attend_##KIND(                                                                 \
        T *out, const T *query, const T *keys, const T *values, const int64_t *table,              \
        const int64_t *lengths, const float *sinks, int64_t rows, int64_t heads, int64_t kv_heads, \
        int64_t key_dim, int64_t value_dim, int64_t block, int64_t table_width, int64_t query_row, \
        int64_t query_head, int64_t window, float scaling, float softcap, int threads) {           \
        Shape shape{rows,        heads,     kv_heads,   key_dim, value_dim, block,                 \
                    table_width, query_row, query_head, window,  scaling,   softcap};              \
        attend_any(out, query, keys, values, table, lengths, sinks, shape, threads);               \
    }

KERNELS(float32, float)
KERNELS(bfloat16, bfloat16)
