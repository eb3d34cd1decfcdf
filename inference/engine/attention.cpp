// Attention of a step's tokens, over the blocks of the cache where they lie: nothing is gathered,
// copied or padded. Sums are float32.

#include <utility>
#include <vector>

#include "numbers.h"

namespace {

// Sixteen numbers at once, in whatever registers the processor has.
typedef float lanes __attribute__((vector_size(64)));
typedef float lanes8 __attribute__((vector_size(32)));
typedef float lanes4 __attribute__((vector_size(16)));

inline lanes load16(const float *place) {
    lanes out;
    std::memcpy(&out, place, sizeof out);
    return out;
}

inline float total(lanes a) {
    lanes8 b = __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7) +
               __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
    lanes4 c = __builtin_shufflevector(b, b, 0, 1, 2, 3) + __builtin_shufflevector(b, b, 4, 5, 6, 7);
    return (c[0] + c[2]) + (c[1] + c[3]);
}

// Lane j of the result is the sum of the lanes of parts[j].
inline lanes totals(lanes *parts) {
#define FOLD(count, low, high)                                                                     \
    for (int i = 0; i < count; i++)                                                                \
        parts[i] = __builtin_shufflevector(parts[i], parts[i + count], low) +                      \
                   __builtin_shufflevector(parts[i], parts[i + count], high);
#define LIST(...) __VA_ARGS__
    FOLD(8, LIST(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
         LIST(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    FOLD(4, LIST(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
         LIST(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    FOLD(2, LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
         LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    FOLD(1, LIST(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
         LIST(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#undef LIST
#undef FOLD
    return parts[0];
}

constexpr int64_t RUN = 16, TOKENS = 4;
// Bytes between what is read and what is asked for.
constexpr int64_t AHEAD = 4096;

// Rows as float32, in `space` unless they are that already.
inline const float *widened(const float *rows, float *, int64_t) { return rows; }

inline const float *widened(const bfloat16 *rows, float *space, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) space[i] = load(rows[i]);
    return space;
}

// The products of a query with up to 16 keys that lie one after the other; writes 16 numbers.
// DIM is the width where it is one of the common ones, so that sums stay in registers; else 0.
template <int DIM>
inline void dots(float *out, const float *query, const float *key, int64_t count, int64_t width,
                 float scaling) {
    lanes sums[RUN];
    if (DIM && count == RUN) {
        lanes q[DIM / 16 + 1];
        for (int i = 0; i < DIM / 16; i++) q[i] = load16(query + 16 * i);
#pragma GCC unroll 16
        for (int t = 0; t < RUN; t++) {
            sums[t] = q[0] * load16(key + t * DIM);
            for (int i = 1; i < DIM / 16; i++) sums[t] += q[i] * load16(key + t * DIM + 16 * i);
        }
    } else {
        for (int64_t t = 0; t < RUN; t++) {
            const float *k = key + t * width;
            sums[t] = lanes{};
            if (t >= count) continue;
            if (DIM) {
                sums[t] = load16(query) * load16(k);
                for (int i = 16; i < DIM; i += 16) sums[t] += load16(query + i) * load16(k + i);
            } else {
                float sum = 0;
                for (int64_t i = 0; i < width; i++) sum += query[i] * k[i];
                sums[t][0] = sum;
            }
        }
    }
    lanes result = totals(sums) * scaling;
    std::memcpy(out, &result, sizeof result);
}

// Adds weighted rows, `count` of them one after the other.
template <int DIM>
inline void add(float *sum, const float *weights, const float *rows, int64_t count, int64_t width) {
    if (DIM) {
        lanes parts[DIM / 16 + 1];
        for (int i = 0; i < DIM / 16; i++) parts[i] = load16(sum + 16 * i);
        for (int64_t t = 0; t < count; t++)
            for (int i = 0; i < DIM / 16; i++)
                parts[i] += weights[t] * load16(rows + t * DIM + 16 * i);
        for (int i = 0; i < DIM / 16; i++) std::memcpy(sum + 16 * i, &parts[i], sizeof(lanes));
    } else
        for (int64_t t = 0; t < count; t++)
            for (int64_t i = 0; i < width; i++) sum[i] += weights[t] * rows[t * width + i];
}

struct Shape {
    int64_t spans, heads, kv_heads, key_dim, value_dim, block, table_width, query_row, query_head,
        window;
    float scaling, softcap;

    template <class T>
    const T *place(const T *pool, int64_t number, int64_t head, int64_t row, int64_t dim) const {
        return pool + ((number * kv_heads + head) * block + row) * dim;
    }
};

// A compiler takes a function that only asks for memory for one that does nothing.
#define ALWAYS __attribute__((always_inline))

// A block lies anywhere, so the processor cannot guess it: ask for it early. Into the second cache,
// since the first can wait for few lines at once, and what computes meanwhile would wait with it.
template <class T> ALWAYS inline void fetch(const T *rows, int64_t count) {
    for (int64_t i = 0; i < count; i += int64_t(64 / sizeof(T)))
        __builtin_prefetch(rows + i, 0, 2);
}

// What one query sees: the places [first, stop) of its scores.
struct Seen {
    int64_t first, stop;
};

inline void softmax(float *score, Seen seen, const float *sink, float softcap) {
    float *from = score + seen.first;
    int64_t count = seen.stop - seen.first, whole = (count + RUN - 1) / RUN * RUN;
    for (int64_t t = count; t < whole; t++) from[t] = -INFINITY;
    if (softcap > 0)
        for (int64_t t = 0; t < count; t++) from[t] = std::tanh(from[t] / softcap) * softcap;
    lanes most = load16(from);
    for (int64_t t = RUN; t < whole; t += RUN) {
        lanes next = load16(from + t);
        most = next > most ? next : most;
    }
    float highest = sink ? *sink : most[0];
    for (int i = 0; i < RUN; i++) highest = most[i] > highest ? most[i] : highest;
    // In an order that does not depend on where the scores lie.
    lanes parts = lanes{};
    for (int64_t t = 0; t < whole; t += RUN) {
#pragma omp simd
        for (int i = 0; i < RUN; i++) {
            float x = from[t + i];
            from[t + i] = x == -INFINITY ? 0.0f : exponential(x - highest);
        }
        parts += load16(from + t);
    }
    float sum = total(parts);
    if (sink) sum += exponential(*sink - highest);
    lanes all = lanes{} + sum;
    for (int64_t t = 0; t < whole; t += RUN) {
        lanes share = load16(from + t) / all;
        std::memcpy(from + t, &share, sizeof share);
    }
}

// Queries of up to TOKENS tokens of one sequence, the first of them at `position`, and of the heads
// that share keys: all go over a run of keys while it is near. A query's numbers do not depend on
// the others.
template <int DIM, class T>
void attend_some(T *out, const T *query, const T *keys, const T *values, const int64_t *blocks,
                 int64_t position, int64_t tokens, const float *sinks, const Shape &s,
                 int64_t kv_head, std::vector<float> &space) {
    int64_t shared = s.heads / s.kv_heads, count = tokens * shared, stop = position + tokens;
    int64_t first = s.window > 0 && position + 1 > s.window ? position + 1 - s.window : 0;
    int64_t width = stop - first + RUN;
    int64_t wider = s.key_dim > s.value_dim ? s.key_dim : s.value_dim;
    space.resize(count * (width + s.key_dim + s.value_dim) + RUN * wider);
    float *scores = space.data(), *q = scores + count * width, *sums = q + count * s.key_dim;
    float *wide = sums + count * s.value_dim;
    std::memset(sums, 0, count * s.value_dim * sizeof(float));
    auto seen = [&](int64_t n) {
        int64_t last = position + n / shared;
        int64_t from = s.window > 0 && last + 1 > s.window ? last + 1 - s.window : 0;
        return Seen{from - first, last + 1 - first};
    };
    for (int64_t n = 0; n < count; n++) {
        const T *row = query + n / shared * s.query_row + (kv_head * shared + n % shared) * s.query_head;
        for (int64_t i = 0; i < s.key_dim; i++) q[n * s.key_dim + i] = load(row[i]);
    }
    auto ahead = [&](int64_t dim) {
        int64_t count = AHEAD / int64_t(RUN * dim * sizeof(T));
        return (count > 1 ? count : 1) * RUN;
    };
    auto fetch_run = [&](const T *pool, int64_t dim, int64_t head, int64_t t) ALWAYS {
        if (t < stop) fetch(s.place(pool, blocks[t / s.block], head, t % s.block, dim), RUN * dim);
    };
    auto fetch_first = [&](const T *pool, int64_t dim, int64_t head) ALWAYS {
        for (int64_t t = first; t < first + ahead(dim); t += RUN) fetch_run(pool, dim, head, t);
    };
    auto runs = [&](const T *pool, int64_t dim, auto &&each) {
        for (int64_t t = first + RUN; t < first + ahead(dim); t += RUN)
            fetch_run(pool, dim, kv_head, t);
        for (int64_t t = first; t < stop;) {
            int64_t place = t % s.block, run = s.block - place < RUN ? s.block - place : RUN;
            if (run > stop - t) run = stop - t;
            const T *rows = s.place(pool, blocks[t / s.block], kv_head, place, dim);
            fetch_run(pool, dim, kv_head, t + ahead(dim));
            // Rows past the last one are in the block too: whole runs are quicker, and nobody looks.
            int64_t there = s.block - place < RUN ? run : RUN;
            const float *numbers = widened(rows, wide, there * dim);
            for (int64_t n = 0; n < count; n++) each(n, t - first, run, there, numbers);
            t += run;
        }
    };
    runs(keys, s.key_dim, [&](int64_t n, int64_t t, int64_t, int64_t there, const float *rows) {
        if (t < seen(n).stop)
            dots<DIM>(scores + n * width + t, q + n * s.key_dim, rows, there, s.key_dim, s.scaling);
    });
    fetch_first(values, s.value_dim, kv_head);
    for (int64_t n = 0; n < count; n++)
        softmax(scores + n * width, seen(n), sinks ? sinks + kv_head * shared + n % shared : nullptr,
                s.softcap);
    if (kv_head + 1 < s.kv_heads) fetch_first(keys, s.key_dim, kv_head + 1);
    runs(values, s.value_dim, [&](int64_t n, int64_t t, int64_t run, int64_t, const float *rows) {
        Seen own = seen(n);
        int64_t from = own.first > t ? own.first : t, to = own.stop < t + run ? own.stop : t + run;
        if (from < to)
            add<DIM>(sums + n * s.value_dim, scores + n * width + from, rows + (from - t) * s.value_dim,
                     to - from, s.value_dim);
    });
    for (int64_t n = 0; n < count; n++) {
        T *place = out + (n / shared * s.heads + kv_head * shared + n % shared) * s.value_dim;
        for (int64_t i = 0; i < s.value_dim; i++) store(place[i], sums[n * s.value_dim + i]);
    }
}

template <int DIM, class T>
void attend(T *out, const T *query, const T *keys, const T *values, const int64_t *table,
            const Span *spans, const float *sinks, const Shape &s, int threads) {
    std::vector<std::pair<int64_t, int64_t>> parts;
    for (int64_t span = 0; span < s.spans; span++)
        for (int64_t token = 0; token < spans[span].count; token += TOKENS)
            parts.emplace_back(span, token);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<float> space;
        // The heads of a block lie together: where there are parts enough, one thread takes them all.
        int64_t together = int64_t(parts.size()) >= 8 * threads ? s.kv_heads : 1;
#pragma omp for schedule(dynamic, together)
        for (int64_t task = 0; task < int64_t(parts.size()) * s.kv_heads; task++) {
            auto [number, token] = parts[task / s.kv_heads];
            const Span &span = spans[number];
            int64_t row = span.row + token, left = span.count - token;
            attend_some<DIM>(out + row * s.heads * s.value_dim, query + row * s.query_row, keys,
                             values, table + number * s.table_width, span.position + token,
                             left < TOKENS ? left : TOKENS, sinks, s, task % s.kv_heads, space);
        }
    }
}

template <class T>
void attend_any(T *out, const T *query, const T *keys, const T *values, const int64_t *table,
                const Span *spans, const float *sinks, const Shape &s, int threads) {
    int64_t dim = s.key_dim == s.value_dim ? s.key_dim : 0;
    auto *known = dim == 64 ? attend<64, T> : dim == 128 ? attend<128, T> : attend<0, T>;
    known(out, query, keys, values, table, spans, sinks, s, threads);
}

} // namespace

#define ATTENTION(KIND, T)                                                                        \
    extern "C" void attend_##KIND(                                                                 \
        T *out, const T *query, const T *keys, const T *values, const int64_t *table,              \
        const Span *spans, const float *sinks, int64_t count, int64_t heads, int64_t kv_heads,     \
        int64_t key_dim, int64_t value_dim, int64_t block, int64_t table_width, int64_t query_row, \
        int64_t query_head, int64_t window, float scaling, float softcap, int threads) {           \
        Shape shape{count,       heads,     kv_heads,   key_dim, value_dim, block,                 \
                    table_width, query_row, query_head, window,  scaling,   softcap};              \
        attend_any(out, query, keys, values, table, spans, sinks, shape, threads);                 \
    }

ATTENTION(float32, float)
ATTENTION(bfloat16, bfloat16)
