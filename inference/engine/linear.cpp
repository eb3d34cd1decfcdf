// Products of rows with the weights of a linear layer, for processors with AVX-512.
//
// The weights lie in panels of 32 outputs, laid out once when a model is loaded: input by input for
// float32, pair of inputs by pair for bfloat16. A row is summed in one order, input by input,
// whatever rows stand beside it, so that its numbers do not depend on the batch. Few rows take what
// reading the weights from memory takes; of many rows, twelve share each panel from the cache.

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>

namespace {

constexpr int64_t PANEL = 32, ROWS = 12, ROWS_OF_TASK = 96, AHEAD = 24, INPUTS = 64;
// Below so many multiplications one thread is quicker than waking a second one.
constexpr int64_t SERIAL = 1 << 17;

struct Sums {
    __m512 low, high;
};

// What differs between the dtypes: how a step of the sum is taken, and how a result is stored.
struct Float32 {
    typedef float number;
    static constexpr int64_t step = 1;

    static Sums add(Sums sums, const float *weights, __m512 input) {
        return {_mm512_fmadd_ps(input, _mm512_loadu_ps(weights), sums.low),
                _mm512_fmadd_ps(input, _mm512_loadu_ps(weights + 16), sums.high)};
    }
    static __m512 input(const float *row, int64_t) { return _mm512_set1_ps(*row); }
    static void store(float *out, Sums sums) {
        _mm512_storeu_ps(out, sums.low);
        _mm512_storeu_ps(out + 16, sums.high);
    }
};

#if defined(__AVX512BF16__)
struct Bfloat16 {
    typedef uint16_t number;
    static constexpr int64_t step = 2;

    static Sums add(Sums sums, const uint16_t *weights, __m512 input) {
        __m512bh pair = (__m512bh)input;
        return {_mm512_dpbf16_ps(sums.low, pair, (__m512bh)_mm512_loadu_si512(weights)),
                _mm512_dpbf16_ps(sums.high, pair, (__m512bh)_mm512_loadu_si512(weights + 32))};
    }
    // The last pair of an odd width has one number.
    static __m512 input(const uint16_t *row, int64_t left) {
        uint32_t pair = row[0];
        if (left > 1) std::memcpy(&pair, row, 4);
        return (__m512)_mm512_set1_epi32(int32_t(pair));
    }
    static void store(uint16_t *out, Sums sums) {
        _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(sums.high, sums.low));
    }
};
#endif

template <class Kind> struct Product {
    typedef typename Kind::number number;
    number *out;
    const number *in, *panels;
    const float *bias;
    int64_t rows, inputs, outputs;

    template <int COUNT> void panel(int64_t row, int64_t first, const number *weights) const {
        const number *x = in + row * inputs;
        Sums totals[COUNT];
        for (int r = 0; r < COUNT; r++) {
            totals[r] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
            if (bias) totals[r] = {_mm512_loadu_ps(bias + first), _mm512_loadu_ps(bias + first + 16)};
        }
        // Sums of sums: one long sum would round each input against all before it.
        for (int64_t k = 0; k < inputs;) {
            int64_t stop = k + INPUTS < inputs ? k + INPUTS : inputs;
            Sums sums[COUNT];
            for (int r = 0; r < COUNT; r++) sums[r] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
            for (; k < stop; k += Kind::step, weights += PANEL * Kind::step) {
                if (COUNT <= 4) {
                    const char *later = (const char *)(weights + AHEAD * PANEL * Kind::step);
                    _mm_prefetch(later, _MM_HINT_T0);
                    _mm_prefetch(later + 64, _MM_HINT_T0);
                }
                for (int r = 0; r < COUNT; r++)
                    sums[r] = Kind::add(sums[r], weights, Kind::input(x + r * inputs + k, inputs - k));
            }
            for (int r = 0; r < COUNT; r++) {
                totals[r].low = _mm512_add_ps(totals[r].low, sums[r].low);
                totals[r].high = _mm512_add_ps(totals[r].high, sums[r].high);
            }
        }
        for (int r = 0; r < COUNT; r++) {
            number *place = out + (row + r) * outputs + first;
            if (first + PANEL <= outputs) {
                Kind::store(place, totals[r]);
            } else {
                number whole[PANEL];
                Kind::store(whole, totals[r]);
                std::memcpy(place, whole, (outputs - first) * sizeof(number));
            }
        }
    }

    template <int COUNT> void some(int count, int64_t row, int64_t first, const number *weights) const {
        if constexpr (COUNT > 0) {
            if (count == COUNT)
                panel<COUNT>(row, first, weights);
            else
                some<COUNT - 1>(count, row, first, weights);
        }
    }

    void run(int threads) const {
        int64_t panels_of = (outputs + PANEL - 1) / PANEL;
        int64_t size = (inputs + Kind::step - 1) / Kind::step * Kind::step * PANEL;
        int64_t parts = (rows + ROWS_OF_TASK - 1) / ROWS_OF_TASK;
        if (rows * inputs * outputs < SERIAL) threads = 1;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
        for (int64_t task = 0; task < panels_of * parts; task++) {
            int64_t number_of = task / parts, row = task % parts * ROWS_OF_TASK;
            int64_t stop = row + ROWS_OF_TASK < rows ? row + ROWS_OF_TASK : rows;
            while (row < stop) {
                // Evenly: 16 rows are 8 and 8, for 4 would wait for the weights.
                int64_t turns = (stop - row + ROWS - 1) / ROWS;
                int count = int((stop - row + turns - 1) / turns);
                some<ROWS>(count, row, number_of * PANEL, panels + number_of * size);
                row += count;
            }
        }
    }
};

} // namespace

extern "C" void linear_float32(float *out, const float *in, const float *panels, const float *bias,
                               int64_t rows, int64_t inputs, int64_t outputs, int threads) {
    Product<Float32>{out, in, panels, bias, rows, inputs, outputs}.run(threads);
}

// With AMX the matrix kernels of torch are the quicker ones.
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
extern "C" void linear_bfloat16(uint16_t *out, const uint16_t *in, const uint16_t *panels,
                                const float *bias, int64_t rows, int64_t inputs, int64_t outputs,
                                int threads) {
    Product<Bfloat16>{out, in, panels, bias, rows, inputs, outputs}.run(threads);
}
#endif
#endif
