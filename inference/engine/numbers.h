// Numbers in memory and on their way: arithmetic is float32, whatever the dtype.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// Tokens of one sequence that stand one after the other: their first row, its position, how many.
struct Span {
    int64_t row, position, count;
};

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

// How many threads work on so many numbers: up to a few, one is quicker than waking a second one.
inline int threads_for(int64_t numbers, int threads) { return numbers <= 1 << 14 ? 1 : threads; }

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

} // namespace
