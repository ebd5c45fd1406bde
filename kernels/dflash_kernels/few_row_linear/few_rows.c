/* y[n][o] = sum over k of x[n][k] * w[o][k], for few rows n.

   A weight is read from memory once whatever the number of rows: for each small group of its rows all rows of x,
   which stay in the first-level cache, pass over it. Sums run in LANES parts, so results differ from other
   orders of summation by float32 rounding only. A row's result does not depend on the rows beside it. */

/* Sums of CHUNK rows of x and GROUP of w, with what they are made of, fill the registers but do not spill. */
#ifdef __AVX512F__
#define LANES 16
#define CHUNK 6
#else
#define LANES 8
#define CHUNK 4
#endif
#define GROUP 4      /* weight rows computed together: each vector of x is used so many times */
#define AHEAD 1      /* groups whose weights are fetched before they are needed */

/* Read through pointers and not by memcpy, which for eight lanes goes through the stack in two halves. */
typedef unsigned short halves __attribute__((vector_size(LANES * sizeof(short)), aligned(2), may_alias));
typedef unsigned int words __attribute__((vector_size(LANES * sizeof(int)), aligned(4), may_alias));
typedef float vector __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

/* Weights are float32, or bfloat16, which is the upper half of a float32. */
static inline __attribute__((always_inline)) vector load_weights(const void *w, long at, int narrow) {
    if (!narrow)
        return *(const vector *)((const float *)w + at);
    halves half = *(const halves *)((const unsigned short *)w + at);
    return (vector)(__builtin_convertvector(half, words) << 16);
}

static inline __attribute__((always_inline)) float load_weight(const void *w, long at, int narrow) {
    if (!narrow)
        return ((const float *)w)[at];
    union { unsigned int bits; float value; } whole = {(unsigned int)((const unsigned short *)w)[at] << 16};
    return whole.value;
}

static inline __attribute__((always_inline)) float total(vector sum) {
    float parts[LANES];
    for (int i = 0; i < LANES; i++)
        parts[i] = sum[i];
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

#if LANES == 16
#define FOLD_PAIR(a, b) \
    (PICK(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) + \
     PICK(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
#define FOLD_FOUR(ab, cd) \
    (PICK(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) + \
     PICK(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31))
#define SHIFT_TWO(s) PICK(s, s, 2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15)
#define SHIFT_ONE(s) PICK(s, s, 1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13)
#else
#define FOLD_PAIR(a, b) \
    (PICK(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + PICK(a, b, 4, 5, 6, 7, 12, 13, 14, 15))
#define FOLD_FOUR(ab, cd) \
    (PICK(ab, cd, 0, 1, 4, 5, 8, 9, 12, 13) + PICK(ab, cd, 2, 3, 6, 7, 10, 11, 14, 15))
#define SHIFT_ONE(s) PICK(s, s, 1, 1, 3, 3, 5, 5, 7, 7)
#endif

/* The totals of a group's sums side by side, in the order of summation of `total`: adding up each sum by itself
   took a fifth of the time of eight rows. */
static inline __attribute__((always_inline)) void totals(const vector *sums, float *results) {
    vector fours = FOLD_FOUR(FOLD_PAIR(sums[0], sums[1]), FOLD_PAIR(sums[2], sums[3]));
#if LANES == 16
    fours += SHIFT_TWO(fours);
#endif
    fours += SHIFT_ONE(fours);
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
            vector values = *(const vector *)(x + n * inner + k);
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
#define REST(rows) \
    case rows: \
        if (rows < CHUNK) \
            block(x, w, first, bias, y, inner, outer, rows, group, narrow); \
        break;
        REST(5) REST(4) REST(3) REST(2) REST(1)
#undef REST
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
