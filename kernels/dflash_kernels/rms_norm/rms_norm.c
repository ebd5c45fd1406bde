/* y[n][i] = x[n][i] / rms(x[n]) * weight[i], float32, rows one after the other. */

#include <math.h>

#define LANES 8

void rms_norm(const float *x, const float *weight, float *y, long rows, long inner, float eps) {
    for (long n = 0; n < rows; n++, x += inner, y += inner) {
        float parts[LANES] = {0}, sum = 0;
        long i = 0;
        for (; i + LANES <= inner; i += LANES)
            for (int lane = 0; lane < LANES; lane++)
                parts[lane] += x[i + lane] * x[i + lane];
        for (; i < inner; i++)
            sum += x[i] * x[i];
        for (int lane = 0; lane < LANES; lane++)
            sum += parts[lane];
        float scale = 1 / sqrtf(sum / inner + eps);
        for (i = 0; i < inner; i++)
            y[i] = x[i] * scale * weight[i];
    }
}
