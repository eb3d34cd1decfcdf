// What a step does between its matrix products, each in one pass over memory.
//
// Plain C++ over raw memory. `compiling.py` compiles this folder's files once for each kind of
// processor, and `kernels.py` says what each function gets. Results in between are rounded to the
// stream's dtype where transformers rounds them, so that bfloat16 is no further from float32 here
// than there. A NaN that comes in comes out.

#include "numbers.h"

namespace {

template <class T>
void rms_norm(T *out, const T *in, const float *weight, int64_t rows, int64_t width, float epsilon,
              int wide, int threads) {
    threads = threads_for(rows * width, threads);
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
    threads = threads_for(rows * width, threads);
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
    threads = threads_for(rows * heads * dim, threads);
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
          int64_t dim, int64_t row_stride, int64_t head_stride, int threads) {
    threads = threads_for(rows * heads * dim, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) {
        int64_t number = slots[row] / block, place = slots[row] % block;
        for (int64_t head = 0; head < heads; head++)
            __builtin_prefetch(pool + ((number * heads + head) * block + place) * dim, 1);
        for (int64_t head = 0; head < heads; head++)
            std::memcpy(pool + ((number * heads + head) * block + place) * dim,
                        in + row * row_stride + head * head_stride, dim * sizeof(T));
    }
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

// The first place of the largest number. A NaN is larger than all, as for torch.
int64_t peak(const float *row, int64_t width) {
    constexpr int64_t PART = 1024;
    float best = -INFINITY;
    int64_t first = 0;
    for (int64_t from = 0; from < width; from += PART) {
        int64_t stop = from + PART < width ? from + PART : width;
        float most = -INFINITY;
        int none = 0;
#pragma omp simd reduction(max : most) reduction(| : none)
        for (int64_t i = from; i < stop; i++) {
            most = row[i] > most ? row[i] : most;
            none |= row[i] != row[i];
        }
        if (none) {
            while (row[from] == row[from]) from++;
            return from;
        }
        if (most > best) {
            best = most;
            first = from;
        }
    }
    while (first < width && row[first] != best) first++;
    return first < width ? first : 0;
}

} // namespace

extern "C" void peaks(int64_t *places, const float *scores, int64_t rows, int64_t width,
                      int threads) {
    threads = threads_for(rows * width, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row++) places[row] = peak(scores + row * width, width);
}

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
    threads = threads_for(rows * size, threads);
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
                                int64_t head_stride, int threads) {                                \
        keep(pool, in, slots, rows, heads, block, dim, row_stride, head_stride, threads);          \
    }

KERNELS(float32, float)
KERNELS(bfloat16, bfloat16)
