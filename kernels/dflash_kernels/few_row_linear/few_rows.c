/* y[n][o] = sum over k of x[n][k] * w[o][k], for few rows n.

   A weight is read from memory once whatever the number of rows: for each small group of its rows all rows of x,
   which stay in the first-level cache, pass over it. Sums run in LANES parts, so results differ from other
   orders of summation by float32 rounding only. A row's result does not depend on the rows beside it. */

#include <string.h>

#define LANES 16
#define GROUP 4      /* weight rows computed together: each vector of x is used so many times */
#define AHEAD 1      /* groups whose weights are fetched before they are needed */
#define CHUNK 4      /* rows of x whose sums fit into registers together with a group's */

typedef float vector __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));

static inline vector load(const float *at) {
    vector value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline float total(vector sum) {
    float parts[LANES], result = 0;
    memcpy(parts, &sum, sizeof sum);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++)
            parts[i] += parts[i + width];
    result = parts[0];
    return result;
}

/* `rows` and `group` are constants where this is inlined, so that the sums live in registers. */
static inline __attribute__((always_inline)) void block(
    const float *x, const float *w, const float *bias, float *y, long inner, long outer, int rows, int group) {
    vector sums[CHUNK][GROUP] = {0};
    long k = 0;
    for (; k + LANES <= inner; k += LANES) {
        vector weights[GROUP];
        for (int o = 0; o < group; o++) {
            weights[o] = load(w + o * inner + k);
            __builtin_prefetch(w + (o + AHEAD * group) * inner + k, 0, 1);
        }
        for (int n = 0; n < rows; n++) {
            vector values = load(x + n * inner + k);
            for (int o = 0; o < group; o++)
                sums[n][o] += values * weights[o];
        }
    }
    for (int n = 0; n < rows; n++)
        for (int o = 0; o < group; o++) {
            float sum = total(sums[n][o]);
            for (long rest = k; rest < inner; rest++)
                sum += x[n * inner + rest] * w[o * inner + rest];
            y[n * outer + o] = bias ? sum + bias[o] : sum;
        }
}

static inline __attribute__((always_inline)) void all_rows(
    const float *x, const float *w, const float *bias, float *y, long count, long inner, long outer, int group) {
    long n = 0;
    for (; n + CHUNK <= count; n += CHUNK)
        block(x + n * inner, w, bias, y + n * outer, inner, outer, CHUNK, group);
    switch (count - n) {
    case 3: block(x + n * inner, w, bias, y + n * outer, inner, outer, 3, group); break;
    case 2: block(x + n * inner, w, bias, y + n * outer, inner, outer, 2, group); break;
    case 1: block(x + n * inner, w, bias, y + n * outer, inner, outer, 1, group); break;
    }
}

/* x [count, inner], w [outer, inner], bias [outer] or null, y [count, outer]; all contiguous float32. */
void few_rows(
    const float *x, const float *w, const float *bias, float *y, long count, long inner, long outer, int threads) {
    long groups = outer / GROUP;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long g = 0; g < groups; g++)
        all_rows(x, w + g * GROUP * inner, bias ? bias + g * GROUP : 0, y + g * GROUP, count, inner, outer, GROUP);
    for (long o = groups * GROUP; o < outer; o++)
        all_rows(x, w + o * inner, bias ? bias + o : 0, y + o, count, inner, outer, 1);
}
