/* y[n][o] = sum over k of x[n][k] * w[o][k], for few rows n.

   A weight is read from memory once whatever the number of rows: for each small group of its rows all rows of x,
   which stay in the first-level cache, pass over it. Sums run in LANES parts, so results differ from other
   orders of summation by float32 rounding only. A row's result does not depend on the rows beside it. */

#include <string.h>

#define LANES 16
#define GROUP 4      /* weight rows computed together: each vector of x is used so many times */
#define AHEAD 1      /* groups whose weights are fetched before they are needed */
#define CHUNK 6      /* rows of x whose sums fit into registers together with a group's */

typedef unsigned short halves __attribute__((vector_size(LANES * sizeof(short)), aligned(2)));
typedef unsigned int words __attribute__((vector_size(LANES * sizeof(int)), aligned(4)));
typedef float vector __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));

static inline vector load(const float *at) {
    vector value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Weights are float32, or bfloat16, which is the upper half of a float32. */
static inline __attribute__((always_inline)) vector load_weights(const void *w, long at, int narrow) {
    if (!narrow)
        return load((const float *)w + at);
    halves half;
    memcpy(&half, (const unsigned short *)w + at, sizeof half);
    words whole = __builtin_convertvector(half, words) << 16;
    vector value;
    memcpy(&value, &whole, sizeof value);
    return value;
}

static inline __attribute__((always_inline)) float load_weight(const void *w, long at, int narrow) {
    if (!narrow)
        return ((const float *)w)[at];
    unsigned int whole = (unsigned int)((const unsigned short *)w)[at] << 16;
    float value;
    memcpy(&value, &whole, sizeof value);
    return value;
}

static inline float total(vector sum) {
    float parts[LANES];
    memcpy(parts, &sum, sizeof sum);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++)
            parts[i] += parts[i + width];
    return parts[0];
}

/* Lanes of two vectors by number, those of `b` from LANES on. */
#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (words){__VA_ARGS__})
#endif

/* The totals of a group's sums side by side, in the order of summation of `total`: adding up each sum by itself
   took a fifth of the time of eight rows. */
static inline __attribute__((always_inline)) void totals(const vector *sums, float *results) {
#define HALVES(a, b) \
    (PICK(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) + \
     PICK(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    vector ab = HALVES(sums[0], sums[1]), cd = HALVES(sums[2], sums[3]);
#undef HALVES
    vector fours = PICK(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                   PICK(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    fours += PICK(fours, fours, 2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15);
    fours += PICK(fours, fours, 1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13);
    for (int o = 0; o < GROUP; o++)
        results[o] = fours[o * LANES / GROUP];
}

/* `rows`, `group` and `narrow` are constants where this is inlined, so that the sums live in registers. */
static inline __attribute__((always_inline)) void block(
    const float *x, const void *w, long first, const float *bias, float *y, long inner, long outer, int rows,
    int group, int narrow) {
    vector sums[CHUNK][GROUP] = {0};
    long k = 0;
    for (; k + LANES <= inner; k += LANES) {
        vector weights[GROUP];
        for (int o = 0; o < group; o++) {
            weights[o] = load_weights(w, first + o * inner + k, narrow);
            long next = first + (o + AHEAD * group) * inner + k;
            __builtin_prefetch((const char *)w + next * (narrow ? 2 : 4), 0, 1);
        }
        for (int n = 0; n < rows; n++) {
            vector values = load(x + n * inner + k);
            for (int o = 0; o < group; o++)
                sums[n][o] += values * weights[o];
        }
    }
    for (int n = 0; n < rows; n++) {
        float whole[GROUP];
        if (group == GROUP)
            totals(sums[n], whole);
        else
            for (int o = 0; o < group; o++)
                whole[o] = total(sums[n][o]);
        for (int o = 0; o < group; o++) {
            float sum = whole[o];
            for (long rest = k; rest < inner; rest++)
                sum += x[n * inner + rest] * load_weight(w, first + o * inner + rest, narrow);
            y[n * outer + o] = bias ? sum + bias[o] : sum;
        }
    }
}

static inline __attribute__((always_inline)) void all_rows(
    const float *x, const void *w, const float *bias, float *y, long count, long inner, long outer, long o,
    int group, int narrow) {
    long first = o * inner, n = 0;
    bias = bias ? bias + o : 0;
    y += o;
    for (; n + CHUNK <= count; n += CHUNK)
        block(x + n * inner, w, first, bias, y + n * outer, inner, outer, CHUNK, group, narrow);
    x += n * inner;
    y += n * outer;
    switch (count - n) {
    case 5: block(x, w, first, bias, y, inner, outer, 5, group, narrow); break;
    case 4: block(x, w, first, bias, y, inner, outer, 4, group, narrow); break;
    case 3: block(x, w, first, bias, y, inner, outer, 3, group, narrow); break;
    case 2: block(x, w, first, bias, y, inner, outer, 2, group, narrow); break;
    case 1: block(x, w, first, bias, y, inner, outer, 1, group, narrow); break;
    }
}

static inline __attribute__((always_inline)) void all_groups(
    const float *x, const void *w, const float *bias, float *y, long count, long inner, long outer, int threads,
    int narrow) {
    long groups = outer / GROUP;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long g = 0; g < groups; g++)
        all_rows(x, w, bias, y, count, inner, outer, g * GROUP, GROUP, narrow);
    for (long o = groups * GROUP; o < outer; o++)
        all_rows(x, w, bias, y, count, inner, outer, o, 1, narrow);
}

/* x [count, inner], w [outer, inner], bias [outer] or null, y [count, outer]; all contiguous float32, but that w
   is bfloat16 where `narrow` is not 0. */
void few_rows(
    const float *x, const void *w, const float *bias, float *y, long count, long inner, long outer, int threads,
    int narrow) {
    if (narrow)
        all_groups(x, w, bias, y, count, inner, outer, threads, 1);
    else
        all_groups(x, w, bias, y, count, inner, outer, threads, 0);
}
